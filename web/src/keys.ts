// The keyboard: views say which keys they take, `?` lists them.

export interface Key {
  /** As `KeyboardEvent.key`: "j", "?", "ArrowDown"; "g g" is two, one after the other. */
  key: string;
  says: string;
  run: () => void;
}

const layers: Key[][] = [];
let before = "";
let beforeAt = 0;
const PAUSE_MS = 800;

/** These keys hold until the returned function is called; later ones come first. */
export function addKeys(keys: Key[]): () => void {
  layers.unshift(keys);
  return () => {
    const at = layers.indexOf(keys);
    if (at >= 0) layers.splice(at, 1);
  };
}

export const allKeys = (): Key[] => [...layers].reverse().flat();

const isField = (target: EventTarget | null): boolean =>
  target instanceof HTMLElement && (target.isContentEditable || /^(INPUT|TEXTAREA|SELECT)$/.test(target.tagName));

export function handleKey(event: KeyboardEvent): void {
  if (event.ctrlKey || event.metaKey || event.altKey || event.defaultPrevented) return;
  if (isField(event.target)) {
    if (event.key === "Escape") (event.target as HTMLElement).blur();
    return;
  }
  const now = event.timeStamp;
  const two = now - beforeAt < PAUSE_MS ? `${before} ${event.key}` : "";
  const found = layers.flat().find((each) => each.key === two) ?? layers.flat().find((each) => each.key === event.key);
  before = event.key;
  beforeAt = now;
  if (!found) return;
  event.preventDefault();
  found.run();
}

/** A key as people read it. */
export const keyLabel = (key: string): string =>
  key.replace("ArrowDown", "↓").replace("ArrowUp", "↑").replace("Escape", "Esc").replace("Enter", "↵");


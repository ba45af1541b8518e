// The keyboard: views say which keys they take, `?` lists them.

export interface Key {
  /** As `KeyboardEvent.key`: "j", "?", "ArrowDown". */
  key: string;
  says: string;
  run: () => void;
}

const layers: Key[][] = [];

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
  const found = layers.flat().find((each) => each.key === event.key);
  if (!found) return;
  event.preventDefault();
  found.run();
}

/** A key as people read it. */
export const keyLabel = (key: string): string =>
  key.replace("ArrowDown", "↓").replace("ArrowUp", "↑").replace("Escape", "Esc").replace("Enter", "↵");


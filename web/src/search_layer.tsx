// One search box over what there is. What one source found stands there while others are asked.
import { useEffect, useRef, useState } from "preact/hooks";
import { closeLayer, Layer } from "./layer.tsx";
import { sources } from "./search_sources.ts";
import { store } from "./store.ts";
import * as texts from "./texts.ts";
import type { Hit } from "./views.ts";

const PAUSE_MS = 120;
const MOST = 50;
/** Its list is not a `datalist`, which is what its type asks for. */
const COMBOBOX = { role: "combobox" } as object;

export function SearchLayer() {
  const { place } = store.getState();
  const [query, setQuery] = useState("");
  const [hits, setHits] = useState<Hit[]>([]);
  // By where it leads: what comes in above it does not move the choice.
  const [choice, setChoice] = useState("");
  const [isDone, setDone] = useState(false);
  const list = useRef<HTMLUListElement>(null);
  const chosen = Math.max(hits.findIndex((hit) => hit.href === choice), 0);
  useEffect(() => {
    const words = query.trim();
    const asking = new AbortController();
    const found: Hit[][] = sources.map(() => []);
    const take = (at: number, hits: Hit[]) => {
      found[at] = hits;
      if (!asking.signal.aborted) setHits(once(found));
    };
    const ask = (at: number) => sources[at]!(words, place, asking.signal);
    take(0, words ? (ask(0) as Hit[]) : []);
    setChoice("");
    setDone(false);
    const timer = setTimeout(async () => {
      if (!words) return;
      await Promise.all(sources.slice(1).map(async (_, at) => take(at + 1, await Promise.resolve(ask(at + 1)).catch(() => []))));
      if (!asking.signal.aborted) setDone(true);
    }, PAUSE_MS);
    return () => {
      clearTimeout(timer);
      asking.abort();
    };
  }, [query]);
  useEffect(() => list.current?.children[chosen]?.scrollIntoView({ block: "nearest" }), [chosen]);
  const open = (hit: Hit | undefined) => {
    if (!hit) return;
    closeLayer();
    location.hash = hit.href;
  };
  const onKeyDown = (event: KeyboardEvent) => {
    const by = event.key === "ArrowDown" ? 1 : event.key === "ArrowUp" ? -1 : 0;
    if (by) {
      event.preventDefault();
      setChoice(hits[Math.min(Math.max(chosen + by, 0), hits.length - 1)]?.href ?? "");
    } else if (event.key === "Enter") {
      event.preventDefault();
      open(hits[chosen]);
    }
  };
  const label = place.session ? texts.search.label : texts.search.bankLabel;
  return (
    <Layer title={texts.keys.search}>
      <input
        class="search"
        type="text"
        {...COMBOBOX}
        aria-expanded={hits.length > 0}
        aria-controls="hits"
        aria-activedescendant={hits[chosen] ? `hit-${chosen}` : undefined}
        aria-label={label}
        placeholder={label}
        autofocus
        onInput={(event) => setQuery(event.currentTarget.value)}
        onKeyDown={onKeyDown}
      />
      <ul id="hits" ref={list} class="hits" role="listbox" aria-label={texts.keys.search}>
        {hits.map((hit, at) => (
          <li key={hit.href} id={`hit-${at}`} role="option" aria-selected={at === chosen} onClick={() => open(hit)}>
            <span class="what">{hit.title}</span>
            {hit.text && <span class="text">{hit.text}</span>}
          </li>
        ))}
      </ul>
      {isDone && !hits.length && <p class="nothing">{texts.search.none}</p>}
    </Layer>
  );
}

/** Each place once, as it was found first. */
function once(found: Hit[][]): Hit[] {
  const byPlace = new Map<string, Hit>();
  for (const hit of found.flat()) if (!byPlace.has(hit.href)) byPlace.set(hit.href, hit);
  return [...byPlace.values()].slice(0, MOST);
}

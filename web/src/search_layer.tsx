// One search box over what there is: agents and sessions here, the rest by the views.
import { useEffect, useRef, useState } from "preact/hooks";
import { closeLayer, Layer } from "./layer.tsx";
import { placeHash } from "./router.ts";
import { store } from "./store.ts";
import { texts } from "./texts.ts";
import { type Hit, views } from "./views.ts";

const PAUSE_MS = 120;
const MOST = 50;
/** Its list is not a `datalist`, which is what its type asks for. */
const COMBOBOX = { role: "combobox" } as object;

export function SearchLayer() {
  const { place } = store.getState();
  const [query, setQuery] = useState("");
  const [hits, setHits] = useState<Hit[]>([]);
  const [chosen, setChosen] = useState(0);
  const [isDone, setDone] = useState(false);
  const list = useRef<HTMLUListElement>(null);
  useEffect(() => {
    const words = query.trim();
    const asking = new AbortController();
    const here = words ? known(words) : [];
    setHits(here);
    setChosen(0);
    setDone(false);
    const timer = setTimeout(async () => {
      if (!words) return;
      const asked = views.map((view) => view.search?.(words, place, asking.signal).catch(() => []) ?? []);
      const found = (await Promise.all(asked)).flat();
      if (asking.signal.aborted) return;
      setHits([...found, ...here].slice(0, MOST));
      setDone(true);
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
      setChosen((now) => Math.min(Math.max(now + by, 0), hits.length - 1));
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
          <li key={`${hit.href} ${at}`} id={`hit-${at}`} role="option" aria-selected={at === chosen} onClick={() => open(hit)}>
            <span class="what">{hit.title}</span>
            {hit.text && <span class="text">{hit.text}</span>}
          </li>
        ))}
      </ul>
      {isDone && !hits.length && <p class="nothing">{texts.search.none}</p>}
    </Layer>
  );
}

/** Agents and sessions that this page knows. */
function known(query: string): Hit[] {
  const words = query.toLowerCase();
  const { agents, sessions } = store.getState();
  const found: Hit[] = [];
  for (const { agent } of agents ?? []) {
    if (agent.name.toLowerCase().includes(words)) {
      found.push({ href: placeHash({ scope: "agent", agent: agent.name }), title: agent.name, text: texts.agents });
    }
  }
  for (const each of Object.values(sessions).flat()) {
    if (each.name.toLowerCase().includes(words)) {
      found.push({ href: placeHash({ scope: "session", session: each.name }), title: each.name, text: texts.sessions });
    }
  }
  return found;
}

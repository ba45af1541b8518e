// Memories: of an agent, or of all; what is known of one, and what a person may change about it.
import { useLayoutEffect, useState } from "preact/hooks";
import { useMayWrite } from "../acting.ts";
import type { KeyedMemory, Memory } from "../api_types.ts";
import { whole } from "../format.ts";
import { addKeys } from "../keys.ts";
import { MemoryForm, MemoryPane } from "../memory_pane.tsx";
import { memoryPath, Weight } from "../memory_parts.tsx";
import { Choice, Entry, Failure, Form, Panes, Tabs } from "../panes.tsx";
import { type Place, placeHash } from "../router.ts";
import { sync } from "../sync.ts";
import * as texts from "../texts.ts";
import { memories as words } from "../texts.ts";
import { Topics } from "../topics.tsx";
import { type PageView, useQuery } from "../views.ts";

/** Memories of a first look, and of a thorough one; rows that are made at once. */
const FEW = 500;
const ALL = 10_000;
const ROWS = 200;
const KINDS = Object.keys(texts.memoryKinds) as Memory["kind"][];
const STATUSES = ["active", "retired", "merged", "superseded", "any"] as const;

const NO_FILTER = { kind: "", status: "active", tag: "", words: "" };
type Filter = typeof NO_FILTER;
/** Kept while the page is open, by agent. */
const filters = new Map<string, Filter>();

const fits = (filter: Filter, { memory, key }: KeyedMemory): boolean => {
  const text = `${key} ${memory.text} ${memory.tags?.join(" ") ?? ""}`.toLowerCase();
  return (
    (!filter.kind || memory.kind === filter.kind) &&
    (!filter.tag || (memory.tags ?? []).includes(filter.tag)) &&
    filter.words
      .toLowerCase()
      .split(/\s+/)
      .every((word) => text.includes(word))
  );
};

function Memories({ place }: { place: Place }) {
  const { agent } = place;
  const [filter, setFilter] = useState(filters.get(agent) ?? NO_FILTER);
  const [rows, setRows] = useState(ROWS);
  const [marked, setMarked] = useState<string[]>([]);
  const mayWrite = useMayWrite();
  const isFiltered = filter.kind !== "" || filter.tag !== "" || filter.words !== "";
  const limit = isFiltered || rows > FEW ? ALL : FEW;
  const list = useQuery(
    `memories ${agent} ${filter.status} ${limit}`,
    (api) => api.get("GET /api/v1/memories", { query: { ...(agent ? { agent } : {}), status: filter.status, limit } }),
    ["job"],
  );
  const less = useQuery(`memories ${agent} ${filter.status} ${FEW}`, (api) =>
    api.get("GET /api/v1/memories", { query: { ...(agent ? { agent } : {}), status: filter.status, limit: FEW } }),
  );
  const data = list.data ?? less.data;
  const change = (to: Partial<Filter>) => {
    const next = { ...filter, ...to };
    filters.set(agent, next);
    setFilter(next);
    setRows(ROWS);
  };

  const of = (key: string, view: string[] = []) => {
    const [owner = "", number = ""] = splitKey(key);
    const rest = agent ? [number] : [owner, number];
    return placeHash({ scope: place.scope, agent, view: "memories", rest: key ? rest : view });
  };
  const here = of("");
  const chosen = keyOf(place);
  const isTopics = place.rest.at(-1) === "topics";
  const isNew = place.rest.at(-1) === "new";
  const isMerging = place.rest.at(-1) === "merge" && marked.length > 1;
  const found = (data?.memories ?? []).filter((each) => fits(filter, each));
  const tags = [...new Set((data?.memories ?? []).flatMap((each) => each.memory.tags ?? []))].sort();
  const refresh = () => {
    list.refresh();
    less.refresh();
  };
  const mark = (key: string) =>
    setMarked((all) => (all.includes(key) ? all.filter((each) => each !== key) : [...all, key]));

  useLayoutEffect(
    () =>
      addKeys([
        { key: "x", says: words.keys.mark, run: () => mayWrite && chosen && mark(chosen) },
        { key: "f", says: words.keys.filter, run: () => document.getElementById("memory-words")?.focus() },
      ]),
    [chosen, mayWrite],
  );

  const tabs = agent ? (
    <Tabs
      label={words.parts}
      tabs={[
        { href: here, title: words.title, isHere: !isTopics },
        { href: of("", ["topics"]), title: words.topics, isHere: isTopics },
      ]}
    />
  ) : null;
  if (isTopics) {
    return (
      <>
        {tabs}
        <Topics agent={agent} />
      </>
    );
  }
  return (
    <>
      {tabs}
      <div class="bar" role="search" aria-label={words.filter}>
        <input
          id="memory-words"
          type="search"
          aria-label={words.words}
          placeholder={words.words}
          value={filter.words}
          onInput={(event) => change({ words: event.currentTarget.value })}
        />
        <Choice
          label={words.kind}
          value={filter.kind}
          of={[["", words.anyKind], ...KINDS.map((each): [string, string] => [each, texts.memoryKinds[each]])]}
          onChange={(kind) => change({ kind })}
        />
        <Choice
          label={words.status}
          value={filter.status}
          of={STATUSES.map((each) => [each, texts.memoryStatuses[each]])}
          onChange={(status) => change({ status })}
        />
        {(tags.length > 0 || filter.tag) && (
          <Choice
            label={words.tag}
            value={filter.tag}
            of={[["", words.anyTag], ...tags.map((each): [string, string] => [each, each])]}
            onChange={(tag) => change({ tag })}
          />
        )}
        {mayWrite && agent && (
          <a class="ref" href={of("", ["new"])}>
            {words.add}
          </a>
        )}
        {marked.length > 1 && (
          <a class="ref" href={of("", ["merge"])}>
            {words.mergeSome(marked.length)}
          </a>
        )}
        <span class="count" role="status">
          {data && words.count(whole(isFiltered ? found.length : data.count))}
        </span>
        <Failure text={list.error} />
      </div>
      <Panes
        back={here}
        list={
          <>
            {data && found.length === 0 && <p class="nothing">{data.count ? words.noneFit : words.none}</p>}
            <ul class="entries">
              {found.slice(0, rows).map((each) => (
                <Row
                  key={each.key}
                  of={each}
                  href={of(each.key)}
                  hasAgent={!agent}
                  isChosen={each.key === chosen}
                  isMarked={marked.includes(each.key)}
                  onMark={mayWrite ? mark : undefined}
                />
              ))}
            </ul>
            {(found.length > rows || (data && data.count > data.memories.length)) && (
              <button class="quiet wide" onClick={() => setRows(rows + 500)}>
                {words.more}
              </button>
            )}
          </>
        }
      >
        {isMerging ? (
          <Merge
            keys={marked}
            memories={data?.memories ?? []}
            onEnd={(kept) => {
              if (kept) setMarked([]);
              refresh();
              location.hash = kept ? of(kept) : here;
            }}
          />
        ) : isNew && agent ? (
          <New
            agent={agent}
            onEnd={(key) => {
              refresh();
              location.hash = key ? of(key) : here;
            }}
          />
        ) : (
          chosen !== "" && (
            <MemoryPane
              key={chosen}
              name={chosen}
              listed={data?.memories.find((each) => each.key === chosen)}
              href={of}
              onChange={refresh}
              onGone={() => {
                refresh();
                setMarked((all) => all.filter((each) => each !== chosen));
                location.hash = here;
              }}
            />
          )
        )}
      </Panes>
    </>
  );
}

/** `planner/M-7` of an address; empty if it names none. */
function keyOf({ agent, rest }: Place): string {
  const number = rest.at(-1) ?? "";
  const owner = agent || rest[0] || "";
  return /^M-\d+$/.test(number) && owner !== number ? `${owner}/${number}` : "";
}

const splitKey = (key: string): [string, string] => {
  const { agent, key: number } = memoryPath(key);
  return [agent, number];
};

function Row(props: {
  of: KeyedMemory;
  href: string;
  hasAgent: boolean;
  isChosen: boolean;
  isMarked: boolean;
  onMark: ((key: string) => void) | undefined;
}) {
  const { key, memory } = props.of;
  const { onMark } = props;
  const status = memory.status ?? "active";
  return (
    <li>
      {onMark && <input type="checkbox" aria-label={words.mark(key)} checked={props.isMarked} onChange={() => onMark(key)} />}
      <Entry
        class={status === "active" ? "" : "over"}
        href={props.href}
        isChosen={props.isChosen}
        what={memory.text}
        at={memory.last}
        tags={memory.tags}
      >
        <Weight of={memory.weight} />
        <span>{texts.memoryKinds[memory.kind]}</span>
        {memory.pinned && <span class="mark">{words.pinned}</span>}
        {status !== "active" && <span>{texts.memoryStatuses[status]}</span>}
        {(memory.contradicts ?? []).length > 0 && <span class="error">{words.contradicted}</span>}
        {props.hasAgent && <span>{memory.agent}</span>}
      </Entry>
    </li>
  );
}

function New({ agent, onEnd }: { agent: string; onEnd: (key?: string) => void }) {
  return (
    <>
      <h2>{words.addTitle(agent)}</h2>
      <MemoryForm
        memory={undefined}
        onCancel={() => onEnd()}
        onSave={async (given) => {
          const { text = "", kind = "fact", weight = null, tags = [], shared = [] } = given;
          const made = await sync.api.call("POST /api/v1/memories/{agent}", {
            path: { agent },
            body: { text: text ?? "", kind: kind ?? "fact", weight, tags: tags ?? [], shared: shared ?? [], person: true },
          });
          onEnd(made.key);
        }}
      />
    </>
  );
}

function Merge({ keys, memories, onEnd }: { keys: string[]; memories: KeyedMemory[]; onEnd: (kept?: string) => void }) {
  const [first = ""] = keys;
  const [agent] = splitKey(first);
  const own = keys.filter((key) => splitKey(key)[0] === agent);
  const chosen = own.flatMap((key) => memories.find((each) => each.key === key) ?? []);
  const [text, setText] = useState(() => chosen.map((each) => each.memory.text).join("\n"));
  const merge = async () => {
    const body = { keys: own.map((key) => splitKey(key)[1]), text, person: true };
    onEnd((await sync.api.call("POST /api/v1/memories/{agent}/merge", { path: { agent }, body })).key);
  };
  return (
    <Form label={words.mergeTitle(own.length)} save={words.merge} onSave={merge} onCancel={() => onEnd()} isLocked={own.length < 2}>
      <h2>{words.mergeTitle(own.length)}</h2>
      <p class="about">{words.mergeHint(first)}</p>
      {own.length < keys.length && <p class="error">{words.mergeOthers(agent)}</p>}
      <ul>
        {chosen.map((each) => (
          <li key={each.key}>
            <span class="ref">{each.key}</span> {each.memory.text}
          </li>
        ))}
      </ul>
      <label>
        {words.text}
        <textarea rows={6} value={text} onInput={(event) => setText(event.currentTarget.value)} />
      </label>
    </Form>
  );
}

async function search(query: string, place: Place, signal: AbortSignal) {
  const { agent } = place;
  const found = await sync.api.get(
    "GET /api/v1/memories",
    { query: { words: query, limit: 10, ...(agent ? { agent } : {}) } },
    signal,
  );
  return found.memories.map(({ key, memory }) => ({
    href: placeHash({ scope: "bank", view: "memories", rest: splitKey(key) }),
    title: key,
    text: memory.text,
  }));
}

const of = { name: "memories", title: words.title, View: Memories };
export default [
  { ...of, scope: "agent", order: 40 },
  { ...of, scope: "bank", order: 40, search },
] satisfies PageView[];


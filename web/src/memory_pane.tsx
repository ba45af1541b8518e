// One memory: what it says, where that came from, what it was before, and what can be done with it.
import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import "./memories.css";
import { useMayWrite } from "./acting.ts";
import type { FormerMemory, KeyedMemory, Memory, MemoryChange } from "./api_types.ts";
import { Fold } from "./fold.tsx";
import { exactly, when } from "./format.ts";
import { addKeys } from "./keys.ts";
import { memoryPath, Weight } from "./memory_parts.tsx";
import { Act, Confirm, Facts, Failure, Form, Quotes, TurnLink } from "./panes.tsx";
import { sync } from "./sync.ts";
import * as texts from "./texts.ts";
import { memories as words } from "./texts.ts";
import { useQuery } from "./views.ts";

const PERSON = { person: true };

export function MemoryPane(props: {
  name: string;
  listed: KeyedMemory | undefined;
  href: (key: string) => string;
  onChange: () => void;
  onGone: () => void;
}) {
  const { name, listed, href } = props;
  const path = memoryPath(name);
  const mayWrite = useMayWrite();
  const [isEditing, setEditing] = useState(false);
  const own = useQuery(`memory ${name}`, (api) => api.get("GET /api/v1/memories/{agent}/{key}", { path }), ["job"]);
  const newest = [own.data?.memory, listed?.memory].filter((each) => each !== undefined);
  const memory = newest.sort((one, other) => (other.version ?? 1) - (one.version ?? 1))[0];
  const refresh = () => {
    own.refresh();
    props.onChange();
  };
  const change = async (work: Promise<unknown>) => {
    await work;
    refresh();
  };
  const pin = () =>
    sync.api.call("PATCH /api/v1/memories/{agent}/{key}", { path, body: { pinned: !memory?.pinned, ...PERSON } });
  useLayoutEffect(() => {
    if (!mayWrite) return;
    return addKeys([
      { key: "e", says: words.keys.edit, run: () => setEditing(true) },
      { key: "p", says: words.keys.pin, run: () => document.getElementById("memory-pin")?.click() },
    ]);
  }, [mayWrite]);
  if (!memory) return <p class={own.error ? "error" : "nothing"}>{own.error}</p>;
  const status = memory.status ?? "active";
  const sources = memory.provenance ?? [];
  const at = memory.anchor;
  const keyIn = (id: string) => `${id.slice(0, id.lastIndexOf("/"))}/M-${Number(id.slice(id.lastIndexOf("/") + 1))}`;
  const links = (ids: string[]) => (
    <span class="refs">
      {ids.map((id) => (
        <a key={id} class="ref" href={href(keyIn(id))}>
          {keyIn(id)}
        </a>
      ))}
    </span>
  );
  return (
    <article class="whole" aria-label={name}>
      <p class="about">
        <span class="ref">{name}</span>
        <span>{texts.memoryKinds[memory.kind]}</span>
        <Weight of={memory.weight} />
        {memory.pinned && <span class="mark">{words.pinned}</span>}
        {status !== "active" && <span class="error">{texts.memoryStatuses[status]}</span>}
      </p>
      {isEditing ? (
        <MemoryForm
          memory={memory}
          onCancel={() => setEditing(false)}
          onConflict={refresh}
          onSave={async (changes, expected) => {
            const body: MemoryChange = { ...changes, expected, ...PERSON };
            await sync.api.call("PATCH /api/v1/memories/{agent}/{key}", { path, body });
            refresh();
            setEditing(false);
          }}
        />
      ) : (
        <p class="words">{memory.text}</p>
      )}
      {mayWrite && !isEditing && (
        <div class="acts">
          <button onClick={() => setEditing(true)}>{words.edit}</button>
          <Act id="memory-pin" label={words.pin} isPressed={memory.pinned ?? false} work={() => change(pin())} onConflict={refresh} />
          {status === "active" ? (
            <Act
              label={words.retire}
              title={words.retireHint}
              work={() => change(sync.api.call("POST /api/v1/memories/{agent}/{key}/retire", { path, body: PERSON }))}
              onConflict={refresh}
            />
          ) : (
            <Act
              label={words.restore}
              work={() => change(sync.api.call("POST /api/v1/memories/{agent}/{key}/restore", { path, body: PERSON }))}
              onConflict={refresh}
            />
          )}
          <Confirm
            label={words.delete}
            sure={words.deleteSure}
            now={words.deleteNow}
            work={async () => {
              await sync.api.call("DELETE /api/v1/memories/{agent}/{key}", { path, query: PERSON });
              props.onGone();
            }}
            onConflict={refresh}
          />
        </div>
      )}
      <Failure text={own.error} />
      <Facts
        of={[
          [words.said, words.times(memory.seen ?? 1, when(memory.first), when(memory.last))],
          [
            words.tags,
            memory.tags?.length ? (
              <span class="refs">
                {memory.tags.map((each) => (
                  <span key={each} class="tag">
                    {each}
                  </span>
                ))}
              </span>
            ) : (
              ""
            ),
          ],
          [words.into, memory.into ? links([memory.into]) : ""],
          [words.contradicts, memory.contradicts?.length ? links(memory.contradicts) : ""],
          [words.shared, (memory.shared ?? []).map((each) => (each === "*" ? words.everybody : each)).join(", ")],
          [words.anchor, at ? [at.repo, at.branch, at.commit?.slice(0, 12), at.path].filter(Boolean).join(" · ") : ""],
          [words.changedBy, [memory.author?.name || words.machine, memory.by_person ? words.byPerson : ""].filter(Boolean).join(" · ")],
        ]}
      />
      {sources.length > 0 && (
        <>
          <h2 class="part">{words.from}</h2>
          <p class="refs">
            {sources.map((each) => (
              <TurnLink key={each} of={each} />
            ))}
          </p>
        </>
      )}
      <Quotes of={memory.quotes ?? []} />
      {(memory.version ?? 1) > 1 && (
        <>
          <h2 class="part">{words.history}</h2>
          <Fold key={memory.version} label={words.versions((memory.version ?? 1) - 1)}>
            {() => <Versions name={name} now={memory} />}
          </Fold>
        </>
      )}
    </article>
  );
}

/** What a memory was before each change, the newest first. */
function Versions({ name, now }: { name: string; now: Memory }) {
  const { data, error } = useQuery(`memory history ${name} ${now.version}`, (api) =>
    api.get("GET /api/v1/memories/{agent}/{key}/history", { path: memoryPath(name) }),
  );
  const former = [...(data ?? [])].reverse();
  return (
    <>
      <Failure text={error} />
      <ol reversed start={former.length} class="versions" aria-label={words.history}>
        {former.map((each, at) => (
          <Version key={each.id} of={each} next={former[at - 1]?.memory ?? now} />
        ))}
      </ol>
    </>
  );
}

function Version({ of, next }: { of: FormerMemory; next: Memory }) {
  const { memory, until } = of;
  const changes: string[] = [
    memory.weight === next.weight ? "" : words.became(words.weight, memory.weight.toFixed(2), next.weight.toFixed(2)),
    memory.kind === next.kind ? "" : words.became(words.kind, texts.memoryKinds[memory.kind], texts.memoryKinds[next.kind]),
    (memory.status ?? "active") === (next.status ?? "active")
      ? ""
      : words.became(words.status, texts.memoryStatuses[memory.status ?? "active"], texts.memoryStatuses[next.status ?? "active"]),
    String(memory.tags ?? "") === String(next.tags ?? "")
      ? ""
      : words.became(words.tags, memory.tags?.join(", ") || "–", next.tags?.join(", ") || "–"),
    Boolean(memory.pinned) === Boolean(next.pinned) ? "" : next.pinned ? words.pinned : words.unpinned,
  ];
  return (
    <li class="version">
      <p class="about">
        <span title={exactly(until)}>{words.until(when(until))}</span>
        <span>{next.author?.name || words.machine}</span>
        {changes.filter(Boolean).map((each) => (
          <span key={each}>{each}</span>
        ))}
      </p>
      {memory.text !== next.text && <p>{memory.text}</p>}
    </li>
  );
}

type Changes = Pick<MemoryChange, "text" | "kind" | "weight" | "tags" | "shared">;

/** What can be changed, as it is typed. */
type Fields = Record<"text" | "kind" | "weight" | "tags" | "shared", string>;

const fieldsOf = (memory: Memory | undefined): Fields => ({
  text: memory?.text ?? "",
  kind: memory?.kind ?? "fact",
  weight: memory ? String(memory.weight) : "",
  tags: memory?.tags?.join(", ") ?? "",
  shared: memory?.shared?.join(", ") ?? "",
});

const listed = (text: string): string[] =>
  text
    .split(",")
    .map((each) => each.trim())
    .filter(Boolean);

/** Writes or changes a memory. Somebody who changed it meanwhile is told of, and nothing is lost. */
export function MemoryForm(props: {
  memory: Memory | undefined;
  onSave: (changes: Changes, expected: number | null) => Promise<void>;
  onCancel: () => void;
  onConflict?: () => void;
}) {
  const { memory } = props;
  /** What was there when the editing began. */
  const [base, setBase] = useState(memory);
  const [form, setForm] = useState(() => fieldsOf(memory));
  const field = useRef<HTMLTextAreaElement>(null);
  useEffect(() => field.current?.focus(), []);
  const before = fieldsOf(base);
  const isMine = (name: keyof Fields) => form[name] !== before[name];
  const isOvertaken = base !== undefined && (memory?.version ?? 1) !== (base.version ?? 1);
  const set = (name: keyof Fields) => (event: { currentTarget: { value: string } }) =>
    setForm({ ...form, [name]: event.currentTarget.value });
  const save = async () => {
    const given: Changes = {};
    if (isMine("text")) given.text = form.text;
    if (isMine("kind")) given.kind = form.kind as Memory["kind"];
    if (isMine("weight")) given.weight = Number(form.weight);
    if (isMine("tags")) given.tags = listed(form.tags);
    if (isMine("shared")) given.shared = listed(form.shared);
    if (base && Object.keys(given).length === 0) props.onCancel();
    else await props.onSave(given, base ? (base.version ?? 1) : null);
  };
  /** Go on from what somebody else wrote; with what was changed here, unless `isTheirs`. */
  const goOn = (isTheirs: boolean) => {
    const theirs = fieldsOf(memory);
    const names = Object.keys(theirs) as (keyof Fields)[];
    setForm(Object.fromEntries(names.map((name) => [name, isTheirs || !isMine(name) ? theirs[name] : form[name]])) as unknown as Fields);
    setBase(memory);
  };
  return (
    <Form label={words.edit} save={words.save} onSave={save} onCancel={props.onCancel} onConflict={props.onConflict} isLocked={isOvertaken}>
      {isOvertaken && memory && (
        <div class="meanwhile" role="alert">
          <p>{words.meanwhile(memory.author?.name || words.machine)}</p>
          <p class="words">{memory.text}</p>
          <div class="acts">
            <button type="button" onClick={() => goOn(false)}>
              {words.keepMine}
            </button>
            <button type="button" onClick={() => goOn(true)}>
              {words.takeTheirs}
            </button>
          </div>
        </div>
      )}
      <label>
        {words.text}
        <textarea ref={field} rows={5} required value={form.text} onInput={set("text")} />
      </label>
      <div class="pair">
        <label>
          {words.kind}
          <select value={form.kind} onChange={set("kind")}>
            {Object.entries(texts.memoryKinds).map(([value, title]) => (
              <option key={value} value={value}>
                {title}
              </option>
            ))}
          </select>
        </label>
        <label>
          {words.weightRange}
          <input
            type="number"
            min="0"
            max="1"
            step="any"
            required={base !== undefined}
            value={form.weight}
            onInput={set("weight")}
          />
        </label>
        <label>
          {words.tagsHow}
          <input value={form.tags} onInput={set("tags")} />
        </label>
        <label>
          {words.sharedHow}
          <input value={form.shared} onInput={set("shared")} />
        </label>
      </div>
    </Form>
  );
}

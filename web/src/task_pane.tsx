// One task: why it waits, what hangs together with it, and what can be done about it.
import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import { useMayWrite } from "./acting.ts";
import type { NewTask, TaskDetails, TaskEvidence, TaskSummary } from "./api_types.ts";
import { exactly } from "./format.ts";
import { addKeys } from "./keys.ts";
import { Markdown } from "./markdown_view.tsx";
import { Act, Facts, Failure, Form, TurnLink } from "./panes.tsx";
import { sync } from "./sync.ts";
import * as texts from "./texts.ts";
import { tasks as words } from "./texts.ts";
import { useQuery } from "./views.ts";

/** Claims that this page made, by task: their tokens show that they are its own. */
const claims = new Map<string, number>();

const list = (text: string): string[] =>
  text
    .split(",")
    .map((each) => each.trim())
    .filter(Boolean);

type Form = "" | "done" | "block" | "note";

export function TaskPane(props: { project: string; id: string; link: (task: string) => string; onChange: () => void }) {
  const { project, id, link, onChange } = props;
  const path = { project, task: id };
  const mayWrite = useMayWrite();
  const [form, setForm] = useState<Form>("");
  const { data, error, refresh } = useQuery(`task ${project} ${id}`, (api) => api.get("GET /api/v1/projects/{project}/tasks/{task}", { path }));
  useLayoutEffect(() => {
    if (!mayWrite) return;
    return addKeys([{ key: "n", says: words.keys.note, run: () => setForm("note") }]);
  }, [mayWrite]);
  if (!data) return <p class={error ? "error" : "nothing"}>{error}</p>;
  const { task } = data;
  const state = task.state ?? "ready";
  const isClosed = state === "done" || state === "dropped";
  const token = claims.get(id) ?? null;
  const ended = () => {
    setForm("");
    refresh();
    onChange();
  };
  const send = async (work: Promise<TaskDetails>) => {
    await work;
    ended();
  };
  const claim = async () => {
    const made = await sync.api.call("POST /api/v1/projects/{project}/claims", { path: { project }, body: { task: id } });
    if (made.task.token) claims.set(id, made.task.token);
    ended();
  };
  const links = (of: TaskSummary[]) => of.length > 0 && <Links of={of} link={link} />;
  const release = () => sync.api.call("POST /api/v1/projects/{project}/tasks/{task}/release", { path, body: { token } });
  return (
    <article class="whole" aria-label={words.name(task.number)}>
      <p class="about">
        <span class="ref">#{task.number}</span>
        <span class={state === "blocked" ? "error" : "mark"}>{texts.taskStates[state]}</span>
        <span>{words.priority(task.priority ?? 2)}</span>
        <span>{task.kind}</span>
        {task.labels?.map((each) => (
          <span key={each} class="tag">
            {each}
          </span>
        ))}
      </p>
      <h2>{task.title}</h2>
      {data.why.length > 0 && !isClosed && (
        <ul class="why">
          {data.why.map((each) => (
            <li key={each}>{each}</li>
          ))}
        </ul>
      )}
      <Failure text={error} />
      {mayWrite && (
        <div class="acts">
          {state === "ready" && <Act label={words.claim} title={words.claimHint} work={claim} onConflict={refresh} />}
          {state === "claimed" && <Act label={words.release} work={() => send(release())} onConflict={refresh} />}
          {!isClosed && (
            <button aria-pressed={form === "done"} onClick={() => setForm(form === "done" ? "" : "done")}>
              {words.finish}
            </button>
          )}
          {!isClosed && !task.blocked && (
            <button aria-pressed={form === "block"} onClick={() => setForm(form === "block" ? "" : "block")}>
              {words.block}
            </button>
          )}
          {task.blocked && (
            <Act
              label={words.unblock}
              work={() => send(sync.api.call("POST /api/v1/projects/{project}/tasks/{task}/unblock", { path, body: {} }))}
              onConflict={refresh}
            />
          )}
          {isClosed && (
            <Act
              label={words.reopen}
              work={() => send(sync.api.call("POST /api/v1/projects/{project}/tasks/{task}/reopen", { path }))}
              onConflict={refresh}
            />
          )}
          <button aria-pressed={form === "note"} onClick={() => setForm(form === "note" ? "" : "note")}>
            {words.note}
          </button>
        </div>
      )}
      {form === "done" && (
        <Said
          label={words.reasonDone}
          save={words.finish}
          other={words.drop}
          onCancel={() => setForm("")}
          onSave={(reason, dropped) =>
            send(sync.api.call("POST /api/v1/projects/{project}/tasks/{task}/done", { path, body: { reason, dropped, token } }))
          }
        />
      )}
      {form === "block" && (
        <Said
          label={words.reasonBlock}
          save={words.block}
          onCancel={() => setForm("")}
          onSave={(text) => {
            const on = list(text).every((each) => /^#\d+$/.test(each)) ? list(text) : [];
            const body = on.length ? { on, token } : { reason: text, token };
            return send(sync.api.call("POST /api/v1/projects/{project}/tasks/{task}/block", { path, body }));
          }}
        />
      )}
      {form === "note" && (
        <Said
          label={words.noteText}
          save={words.note}
          onCancel={() => setForm("")}
          onSave={(text) => send(sync.api.call("POST /api/v1/projects/{project}/tasks/{task}/notes", { path, body: { text } }))}
        />
      )}
      {task.description && <Markdown text={task.description} />}
      <Facts
        of={[
          [words.owner, task.owner],
          [words.until, state === "claimed" ? exactly(task.until) : ""],
          [words.blocked, task.blocked],
          [words.needs, links(data.needs)],
          [words.neededBy, links(data.needed_by)],
          [words.parts, links(data.parts)],
          [words.discovered, links(data.discovered_from)],
          [words.reason, task.reason],
          [words.made, [exactly(task.made), task.made_by].filter(Boolean).join(" · ")],
          [words.closed, task.closed ? exactly(task.closed) : ""],
        ]}
      />
      {task.evidence?.length ? <h2 class="part">{words.evidence}</h2> : null}
      <ul>
        {task.evidence?.map((each, at) => (
          <li key={at}>
            <Evidence of={each} />
          </li>
        ))}
      </ul>
      {task.notes?.length ? <h2 class="part">{words.notes}</h2> : null}
      {task.notes?.map((each, at) => (
        <div key={at} class="version">
          <p class="about">
            <span>{exactly(each.at)}</span>
            <span>{each.by}</span>
          </p>
          <Markdown text={each.text} />
        </div>
      ))}
    </article>
  );
}

function Links({ of, link }: { of: TaskSummary[]; link: (task: string) => string }) {
  return (
    <ul>
      {of.map((each) => (
        <li key={each.id}>
          <a href={link(each.id)}>
            #{each.number} {each.title}
          </a>{" "}
          <span class="about">{texts.taskStates[each.state]}</span>
        </li>
      ))}
    </ul>
  );
}

function Evidence({ of }: { of: TaskEvidence }) {
  if (of.kind === "turn") return <TurnLink of={of.value} />;
  return <span class={of.kind === "text" ? "" : "ref"}>{of.value}</span>;
}

/** A few words, and a button or two. */
function Said(props: {
  label: string;
  save: string;
  other?: string;
  onSave: (text: string, isOther: boolean) => Promise<void>;
  onCancel: () => void;
}) {
  const [text, setText] = useState("");
  const field = useRef<HTMLTextAreaElement>(null);
  useEffect(() => field.current?.focus(), []);
  return (
    <Form
      label={props.save}
      save={props.save}
      onSave={() => props.onSave(text.trim(), false)}
      onCancel={props.onCancel}
      more={(run) =>
        props.other && (
          <button type="button" onClick={() => void run(() => props.onSave(text.trim(), true))}>
            {props.other}
          </button>
        )
      }
    >
      <label>
        {props.label}
        <textarea ref={field} rows={3} value={text} onInput={(event) => setText(event.currentTarget.value)} />
      </label>
    </Form>
  );
}

/** A new task of a project. */
export function TaskForm({ project, onEnd }: { project: string; onEnd: (made?: string) => void }) {
  const [given, setGiven] = useState({ title: "", description: "", priority: "2", needs: "", labels: "" });
  const set = (name: keyof typeof given) => (event: { currentTarget: { value: string } }) =>
    setGiven({ ...given, [name]: event.currentTarget.value });
  const field = useRef<HTMLInputElement>(null);
  useEffect(() => field.current?.focus(), []);
  const save = async () => {
    const { title, description, priority, needs, labels } = given;
    const body: NewTask = { title, description, priority: Number(priority), needs: list(needs), labels: list(labels) };
    const made = await sync.api.call("POST /api/v1/projects/{project}/tasks", { path: { project }, body });
    onEnd(made.id);
  };
  return (
    <Form label={words.add} save={words.save} onSave={save} onCancel={() => onEnd()}>
      <label>
        {words.title}
        <input ref={field} required value={given.title} onInput={set("title")} />
      </label>
      <label>
        {words.description}
        <textarea rows={5} value={given.description} onInput={set("description")} />
      </label>
      <div class="pair">
        <label>
          {words.priorityRange}
          <input type="number" min="0" max="4" value={given.priority} onInput={set("priority")} />
        </label>
        <label>
          {words.labels}
          <input value={given.labels} onInput={set("labels")} />
        </label>
      </div>
      <label>
        {words.needsHow}
        <input value={given.needs} onInput={set("needs")} />
      </label>
    </Form>
  );
}

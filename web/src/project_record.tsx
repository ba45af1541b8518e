// What a project is about, and what was done in it: its state, its journal, and history that was rewritten.
import { useState } from "preact/hooks";
import { useMayWrite } from "./acting.ts";
import type { NamedEntry } from "./api_types.ts";
import { exactly, when } from "./format.ts";
import { Markdown } from "./markdown_view.tsx";
import { Act, Facts, Failure, TurnLink } from "./panes.tsx";
import { sync } from "./sync.ts";
import * as texts from "./texts.ts";
import { tasks as words } from "./texts.ts";
import { useQuery } from "./views.ts";

const KINDS = ["goal", "milestone", "checkpoint", "link"] as const;
/** Entries of the journal that are read at first, and more. */
const PAGE = 50;

/** Rewritten history that nobody has decided about. Nothing where the repository is not on the server's machine. */
export function Rewrites({ project }: { project: string }) {
  const path = { project };
  const mayWrite = useMayWrite();
  const { data, refresh } = useQuery(`rewrites ${project}`, (api) => api.get("GET /api/v1/projects/{project}/status", { path }));
  const decide = (number: number, decision: "rebase" | "fork") => async () => {
    await sync.api.call("POST /api/v1/projects/{project}/reconcile", { path, body: { number, decision } });
    refresh();
  };
  if (!data?.waiting.length) return null;
  return (
    <section class="rewrites" aria-label={words.rewrites}>
      <h2 class="part">{words.rewrites}</h2>
      {data.waiting.map(({ number, at, what, entries }) => (
        <article key={number} class="record">
          <h3>
            {what}
            <span class="when" title={exactly(at)}>
              {when(at)}
            </span>
          </h3>
          <p class="note">{words.rewritten(entries)}</p>
          {mayWrite && (
            <p class="about">
              <Act label={words.follow} title={words.followHint} work={decide(number, "rebase")} />
              <Act label={words.stay} title={words.stayHint} work={decide(number, "fork")} />
            </p>
          )}
        </article>
      ))}
    </section>
  );
}

export function ProjectState({ project }: { project: string }) {
  const { data, error } = useQuery(`state ${project}`, (api) => api.get("GET /api/v1/projects/{project}/state", { path: { project } }), ["turn"]);
  const titles = new Map((data ?? []).map(({ id, entry }) => [id, entry.title]));
  return (
    <div class="page-pane" tabIndex={0} role="region" aria-label={words.state}>
      <Failure text={error} />
      {data?.length === 0 && <p class="note">{words.noState}</p>}
      {KINDS.map((kind) => {
        const entries = (data ?? []).filter(({ entry }) => entry.kind === kind);
        return (
          entries.length > 0 && (
            <section key={kind} aria-label={texts.entryKinds[kind]}>
              <h2 class="part">{texts.entryKinds[kind]}</h2>
              {entries.map((each) => (
                <StateEntry key={each.id} of={each} name={(id) => titles.get(id) ?? id} />
              ))}
            </section>
          )
        );
      })}
    </div>
  );
}

function StateEntry({ of: { entry }, name }: { of: NamedEntry; name: (id: string) => string }) {
  const { status = "open", target = "" } = entry;
  return (
    <article class={status === "open" ? "record" : "record over"}>
      <h3>
        {entry.title}
        {status !== "open" && <span class="tag">{texts.taskStates[status as "done" | "dropped"]}</span>}
        <span class="when" title={exactly(entry.changed)}>
          {[entry.changed_by, when(entry.changed)].filter(Boolean).join(" · ")}
        </span>
      </h3>
      {entry.text && <Markdown text={entry.text} />}
      <Facts
        of={[
          [words.partOf, entry.of && name(entry.of)],
          [words.needs, entry.needs?.map(name).join(", ")],
          [words.target, target && (/^https?:/.test(target) ? <Markdown text={target} /> : <TurnLink of={target} />)],
          [words.commit, entry.commit && `${entry.commit.slice(0, 10)} ${entry.branch ?? ""}`],
        ]}
      />
      {entry.notes?.map((note) => (
        <div key={note.at} class="quote">
          <Markdown text={note.text} />
        </div>
      ))}
    </article>
  );
}

export function Journal({ project }: { project: string }) {
  const [limit, setLimit] = useState(PAGE);
  const { data, error } = useQuery(
    `journal ${project} ${limit}`,
    (api) => api.get("GET /api/v1/projects/{project}/journal", { path: { project }, query: { limit } }),
    ["turn"],
  );
  return (
    <div class="page-pane" tabIndex={0} role="region" aria-label={words.journal}>
      <Failure text={error} />
      {data?.length === 0 && <p class="note">{words.noJournal}</p>}
      {data?.map((each) => (
        <article key={`${each.session} ${each.turn} ${each.at}`} class="record">
          <p class="about">
            {each.turn > 0 ? <TurnLink of={`${each.session}#T-${each.turn}`} /> : words.note}
            <span class="when" title={exactly(each.at)}>
              {when(each.at)}
            </span>
          </p>
          <Markdown text={each.text} />
        </article>
      ))}
      {data && data.length >= limit && <button onClick={() => setLimit(limit + PAGE)}>{texts.olderEntries}</button>}
    </div>
  );
}

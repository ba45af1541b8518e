// What a project is about, and what was done in it: its state and its journal.
import { useState } from "preact/hooks";
import type { NamedEntry } from "./api_types.ts";
import { exactly, when } from "./format.ts";
import { Markdown } from "./markdown_view.tsx";
import { Facts, Failure, TurnLink } from "./panes.tsx";
import * as texts from "./texts.ts";
import { tasks as words } from "./texts.ts";
import { useQuery } from "./views.ts";

const KINDS = ["goal", "milestone", "checkpoint", "link"] as const;
/** Entries of the journal that are read at first, and more. */
const PAGE = 50;

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

// What a project is about, and what was done in it.
import type { NamedEntry } from "./api_types.ts";
import { exactly, when } from "./format.ts";
import { Markdown } from "./markdown_view.tsx";
import { Failure, TurnLink } from "./panes.tsx";
import { texts } from "./texts.ts";
import { useQuery } from "./views.ts";

const words = texts.tasks;
const KINDS = ["goal", "milestone", "checkpoint", "link"] as const;

export function ProjectState({ project }: { project: string }) {
  const { data, error } = useQuery(`state ${project}`, (api) => api.get("GET /api/v1/projects/{project}/state", { path: { project } }));
  const titles = new Map(data?.map((each) => [each.id, each.entry.title]));
  return (
    <div class="page-pane" tabIndex={0} role="region" aria-label={words.state}>
      <Failure text={error} />
      {data?.length === 0 && <p class="nothing">{words.noState}</p>}
      {KINDS.map((kind) => {
        const found = (data ?? []).filter((each) => each.entry.kind === kind);
        return (
          found.length > 0 && (
            <>
              <h2 class="part">{words.entries[kind]}</h2>
              {found.map((each) => (
                <Entry key={each.id} of={each} titles={titles} />
              ))}
            </>
          )
        );
      })}
    </div>
  );
}

function Entry({ of: { entry }, titles }: { of: NamedEntry; titles: Map<string, string> }) {
  const { status = "open", target = "" } = entry;
  const named = (ids: string[]) => ids.map((id) => titles.get(id) ?? id).join(", ");
  return (
    <div class="version">
      <p>
        {/^https?:\/\//.test(target) ? (
          <a href={target} rel="noreferrer" target="_blank">
            {entry.title}
          </a>
        ) : (
          entry.title
        )}
      </p>
      <p class="about">
        {status !== "open" && <span class="mark">{words.statuses[status]}</span>}
        <span title={exactly(entry.changed)}>{when(entry.closed || entry.changed || entry.made)}</span>
        {entry.of && <span>{words.of(named([entry.of]))}</span>}
        {entry.needs?.length ? <span>{words.afterThose(named(entry.needs))}</span> : null}
        <span class="ref">{entry.commit?.slice(0, 10)}</span>
        <span class="ref">{entry.branch}</span>
        {target.includes("#T-") ? <TurnLink of={target} /> : <span class="ref">{target}</span>}
      </p>
      {entry.text && <Markdown text={entry.text} />}
      {entry.notes?.map((each, at) => (
        <Markdown key={at} text={each.text} />
      ))}
    </div>
  );
}

export function Journal({ project }: { project: string }) {
  const { data, error } = useQuery(
    `journal ${project}`,
    (api) => api.get("GET /api/v1/projects/{project}/journal", { path: { project }, query: { limit: 200 } }),
    ["turn"],
  );
  return (
    <div class="page-pane" tabIndex={0} role="region" aria-label={words.journal}>
      <Failure text={error} />
      {data?.length === 0 && <p class="nothing">{words.noJournal}</p>}
      {data?.map((each) => (
        <div key={`${each.session} ${each.turn} ${each.at}`} class="version">
          <p class="about">
            <span title={exactly(each.at)}>{when(each.at)}</span>
            {each.turn > 0 && <TurnLink of={`${each.session}#T-${each.turn}`} />}
          </p>
          <Markdown text={each.text} />
        </div>
      ))}
    </div>
  );
}

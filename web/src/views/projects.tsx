// Projects: their tasks as a graph and as a list, their state, their journal.
import { useState } from "preact/hooks";
import "../projects.css";
import { useMayWrite } from "../acting.ts";
import type { ProjectRecord, RankedTask } from "../api_types.ts";
import { Choice, Entry, Failure, Panes, Tabs } from "../panes.tsx";
import { Journal, ProjectState, Rewrites } from "../project_record.tsx";
import { type Place, placeHash } from "../router.ts";
import { sync } from "../sync.ts";
import { TaskGraph } from "../task_graph.tsx";
import { TaskForm, TaskPane } from "../task_pane.tsx";
import * as texts from "../texts.ts";
import { tasks as words } from "../texts.ts";
import { go, type PageView, useQuery } from "../views.ts";

/** Tasks that a graph shows, the most urgent; the list has all of them. */
const MOST = 300;
/** No task is called so. */
const NEW = "+";

const link = (...rest: string[]): string => placeHash({ scope: "bank", view: "projects", rest: rest.filter(Boolean) });

function Projects({ place }: { place: Place }) {
  const [named = "", part = "graph", task = ""] = place.rest;
  const projects = useQuery("projects", (api) => api.get("GET /api/v1/projects", {}));
  const project = named || projects.data?.[0]?.id || "";
  if (projects.error && !projects.data) return <p class="error nothing">{projects.error}</p>;
  if (projects.data?.length === 0) return <p class="nothing">{words.noProjects}</p>;
  if (!project) return null;
  return <Project key={project} project={project} projects={projects.data ?? []} part={part} task={task} />;
}

const PARTS = { graph: words.graph, list: words.list, state: words.state, journal: words.journal };

function Project({ project, projects, part, task }: { project: string; projects: ProjectRecord[]; part: string; task: string }) {
  const tabs = Object.entries(PARTS).map(([each, title]) => ({ href: link(project, each, task), title, isHere: each === part }));
  return (
    <>
      <div class="choices subtop">
        <Tabs label={words.partsOf} tabs={tabs} />
        {projects.length > 1 && (
          <Choice
            label={words.project}
            value={project}
            of={projects.map((each): [string, string] => [each.id, each.name])}
            onChange={(id) => go({ scope: "bank", view: "projects", rest: [id, part] })}
          />
        )}
      </div>
      <Rewrites project={project} />
      {part === "state" ? <ProjectState project={project} /> : part === "journal" ? <Journal project={project} /> : <Tasks project={project} part={part} task={task} />}
    </>
  );
}

function Tasks({ project, part, task }: { project: string; part: string; task: string }) {
  const [showClosed, setShowClosed] = useState(false);
  const [sought, setSought] = useState("");
  const mayWrite = useMayWrite();
  const { data, error, refresh } = useQuery(
    `graph ${project} ${showClosed}`,
    (api) => api.get("GET /api/v1/projects/{project}/graph", { path: { project }, query: { closed: showClosed } }),
    ["turn"],
  );
  const fits = ({ task }: RankedTask) =>
    `#${task.number} ${task.title} ${task.labels.join(" ")} ${task.owner}`.toLowerCase().includes(sought.toLowerCase());
  const found = (data?.tasks ?? [])
    .filter(fits)
    .sort((one, other) => order(one) - order(other) || one.task.priority - other.task.priority || one.task.number - other.task.number);
  const isList = part === "list";
  const to = (id: string) => link(project, part, id);
  return (
    <>
      <div class="bar">
        <input
          type="search"
          aria-label={words.words}
          placeholder={words.words}
          value={sought}
          onInput={(event) => setSought(event.currentTarget.value)}
        />
        <label class="choice">
          <input type="checkbox" checked={showClosed} onChange={(event) => setShowClosed(event.currentTarget.checked)} />
          {words.showClosed}
        </label>
        {mayWrite && (
          <a class="ref" href={to(NEW)}>
            {words.add}
          </a>
        )}
        <span class="count" role="status">
          {data && words.count(found.length)}
        </span>
        <Failure text={error} />
      </div>
      <Panes
        back={link(project, part)}
        list={
          <>
            {data && !found.length && <p class="nothing">{words.none}</p>}
            {found.length > 0 &&
              (isList ? (
                <List of={found} chosen={task} link={to} />
              ) : (
                <>
                  {found.length > MOST && <p class="nothing">{words.most(MOST, found.length)}</p>}
                  <TaskGraph tasks={found.slice(0, MOST)} chosen={task} link={to} />
                </>
              ))}
          </>
        }
      >
        {task === NEW ? (
          <TaskForm
            project={project}
            onEnd={(made) => {
              refresh();
              location.hash = made ? to(made) : link(project, part);
            }}
          />
        ) : task ? (
          <TaskPane key={task} project={project} id={task} link={to} onChange={refresh} />
        ) : null}
      </Panes>
    </>
  );
}

const STATES = ["claimed", "ready", "blocked", "waiting", "done", "dropped"];
const order = ({ task }: RankedTask): number => STATES.indexOf(task.state);

function List({ of, chosen, link }: { of: RankedTask[]; chosen: string; link: (task: string) => string }) {
  const numbers = new Map(of.map(({ task }) => [task.id, task.number]));
  return (
    <ul class="entries">
      {of.map(({ task }) => {
        const needs = task.needs.flatMap((need) => numbers.get(need) ?? []);
        return (
          <li key={task.id}>
            <Entry
              class={task.state === "done" || task.state === "dropped" ? "over" : ""}
              href={link(task.id)}
              isChosen={task.id === chosen}
              what={task.title}
              at={task.changed}
              tags={task.labels}
            >
              <span class="ref">#{task.number}</span>
              <span class={task.state === "blocked" ? "error" : task.state === "ready" ? "mark" : ""}>{texts.taskStates[task.state]}</span>
              <span>{words.priority(task.priority)}</span>
              {task.owner && <span>{task.owner}</span>}
              {needs.length > 0 && <span>{words.after(needs)}</span>}
            </Entry>
          </li>
        );
      })}
    </ul>
  );
}

async function search(query: string, _: Place, signal: AbortSignal) {
  const sought = query.toLowerCase();
  const projects = await sync.api.get("GET /api/v1/projects", {}, signal);
  const found = await Promise.all(
    projects.slice(0, 10).map(async ({ id }) => {
      const tasks = await sync.api.get("GET /api/v1/projects/{project}/tasks", { path: { project: id }, query: { limit: 1_000 } }, signal);
      return tasks
        .filter((each) => `#${each.number} ${each.title}`.toLowerCase().includes(sought))
        .slice(0, 5)
        .map((each) => ({ href: link(id, "list", each.id), title: `#${each.number}`, text: each.title }));
    }),
  );
  return found.flat();
}

export default {
  name: "projects",
  title: words.view,
  scope: "bank",
  order: 60,
  View: Projects,
  search,
} satisfies PageView;

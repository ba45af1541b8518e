// What waits for what, as a picture. Each task is a link, so that the keyboard and screen readers
// walk it; the list beside it says the same.
import { useEffect, useMemo, useRef } from "preact/hooks";
import type { RankedTask } from "./api_types.ts";
import { layOut, NODE, type Placed, twoLines } from "./task_layout.ts";
import * as texts from "./texts.ts";
import { tasks as words } from "./texts.ts";

const LETTERS = 27;

export function TaskGraph({ tasks, chosen, link }: { tasks: RankedTask[]; chosen: string; link: (task: string) => string }) {
  const layout = useMemo(() => layOut(tasks), [tasks]);
  const numbers = useMemo(() => new Map(tasks.map(({ task }) => [task.id, task.number])), [tasks]);
  const box = useRef<HTMLDivElement>(null);
  // The pane that opens beside it leaves less room.
  useEffect(() => box.current?.querySelector("[aria-current]")?.scrollIntoView({ block: "nearest", inline: "nearest" }), [chosen]);
  return (
    <div class="graph" ref={box} tabIndex={0} role="region" aria-label={words.graph}>
      <svg width={layout.width} height={layout.height} role="group" aria-label={words.graphOf(tasks.length)}>
        <g aria-hidden="true">
          {layout.edges.map(({ from, to }) => (
            <path
              key={`${from.of.task.id} ${to.of.task.id}`}
              class={from.of.task.id === chosen || to.of.task.id === chosen ? "edge near" : "edge"}
              d={curve(from, to)}
            />
          ))}
        </g>
        {layout.nodes.map((each) => (
          <Node key={each.of.task.id} at={each} isChosen={each.of.task.id === chosen} href={link(each.of.task.id)} numbers={numbers} />
        ))}
      </svg>
    </div>
  );
}

function curve(from: Placed, to: Placed): string {
  const [x1, y1] = [from.x + NODE.width, from.y + NODE.height / 2];
  const [x2, y2] = [to.x, to.y + NODE.height / 2];
  const half = NODE.across / 2;
  return `M${x1} ${y1}C${x1 + half} ${y1} ${x2 - half} ${y2} ${x2} ${y2}m-5 -3l5 3l-5 3`;
}

function Node(props: { at: Placed; isChosen: boolean; href: string; numbers: Map<string, number> }) {
  const { x, y, of } = props.at;
  const { task } = of;
  const needs = task.needs.flatMap((need) => props.numbers.get(need) ?? []);
  const [first, second] = twoLines(task.title, LETTERS);
  const said = words.node(task.number, task.title, texts.taskStates[task.state], needs);
  return (
    <a class={`node ${task.state}`} href={props.href} aria-current={props.isChosen ? "true" : undefined}>
      <title>{said}</title>
      <rect class="box" x={x} y={y} width={NODE.width} height={NODE.height} rx="6" />
      <rect class="stripe" x={x} y={y + 6} width="3" height={NODE.height - 12} />
      <text class="small" x={x + 10} y={y + 13}>
        #{task.number} · {texts.taskStates[task.state]}
        {task.owner && task.state === "claimed" ? ` · ${task.owner.slice(0, 14)}` : ""}
      </text>
      <text x={x + 10} y={y + 27}>
        {first}
      </text>
      <text x={x + 10} y={y + 40}>
        {second}
      </text>
    </a>
  );
}

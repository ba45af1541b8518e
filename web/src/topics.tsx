// What an agent talks about, and how the weight of each topic moved.
import type { FormerMemory, Memory } from "./api_types.ts";
import { when } from "./format.ts";
import { memoryHash, memoryPath } from "./memory_parts.tsx";
import { Failure } from "./panes.tsx";
import { memories as words } from "./texts.ts";
import { useQuery } from "./views.ts";

/** Topics that are shown, the weightiest. */
const MOST = 40;
const WIDTH = 400;
const HEIGHT = 30;

interface Topic {
  name: string;
  memory: Memory;
  former: FormerMemory[];
}
/** A weight, and from when on it held. */
export type Step = [at: number, weight: number];

/** The weights that a memory had, from first to last. */
export function stepsOf(memory: Memory, former: FormerMemory[]): Step[] {
  const steps: Step[] = [];
  let since = memory.first;
  for (const each of [...former].sort((one, other) => one.until - other.until)) {
    if (steps.at(-1)?.[1] !== each.memory.weight) steps.push([since, each.memory.weight]);
    since = each.until;
  }
  if (steps.at(-1)?.[1] !== memory.weight) steps.push([since, memory.weight]);
  return steps;
}

export function Topics({ agent }: { agent: string }) {
  const { data, error } = useQuery(
    `topics ${agent}`,
    async (api): Promise<Topic[]> => {
      const { memories } = await api.get("GET /api/v1/memories", { query: { agent, kind: "topic", limit: 1_000 } });
      const most = memories
        .filter((each) => each.memory.agent === agent)
        .sort((one, other) => other.memory.weight - one.memory.weight)
        .slice(0, MOST);
      return Promise.all(
        most.map(async ({ key, memory }) => ({
          name: key,
          memory,
          former: await api.get("GET /api/v1/memories/{agent}/{key}/history", { path: memoryPath(key) }),
        })),
      );
    },
    ["job"],
  );
  if (!data) return <Failure text={error} />;
  if (!data.length) return <p class="nothing">{words.noTopics}</p>;
  const end = Date.now() * 1_000;
  const start = Math.min(...data.map((each) => each.memory.first), end - 60e6);
  return (
    <div class="page-pane" tabIndex={0} role="region" aria-label={words.topics}>
      <Failure text={error} />
      <table class="wide-table topics">
        <thead>
          <tr>
            <th>{words.topic}</th>
            <th>
              <span class="axis">
                <span>{when(start)}</span>
                <span>{words.overTime}</span>
                <span>{words.today}</span>
              </span>
            </th>
            <th class="number">{words.weight}</th>
          </tr>
        </thead>
        <tbody>
          {data.map((each) => (
            <tr key={each.name}>
              <td>
                <a href={memoryHash(each.name)}>{each.memory.text}</a>
              </td>
              <td>
                <Curve of={each} start={start} end={end} />
              </td>
              <td class="number">{each.memory.weight.toFixed(2)}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

function Curve({ of, start, end }: { of: Topic; start: number; end: number }) {
  const steps = stepsOf(of.memory, of.former);
  const x = (at: number) => (((at - start) / (end - start)) * WIDTH).toFixed(1);
  const y = (weight: number) => (HEIGHT - weight * (HEIGHT - 2)).toFixed(1);
  const [first] = steps;
  const line = steps.map(([at, weight], number) => `${number ? `H${x(at)}V` : `M${x(at)} `}${y(weight)}`).join("");
  const said = words.curve(of.memory.text, steps.map(([at, weight]) => `${when(at)}: ${weight.toFixed(2)}`).join(", "));
  return (
    <svg viewBox={`0 0 ${WIDTH} ${HEIGHT}`} preserveAspectRatio="none" role="img" aria-label={said}>
      <title>{said}</title>
      <line class="floor" x1="0" x2={WIDTH} y1={HEIGHT} y2={HEIGHT} />
      <path class="area" d={`${line}H${WIDTH}V${HEIGHT}H${x(first?.[0] ?? start)}Z`} />
      <path class="line" d={`${line}H${WIDTH}`} />
    </svg>
  );
}

// Where each task of a graph stands: pure. What is needed stands left of what needs it.
import type { RankedTask } from "./api_types.ts";

export const NODE = { width: 196, height: 46, across: 36, down: 12 };
const MARGIN = 8;

export interface Placed {
  of: RankedTask;
  x: number;
  y: number;
}

export interface Layout {
  nodes: Placed[];
  edges: { from: Placed; to: Placed }[];
  width: number;
  height: number;
}

/** Columns by rank; within one, near to what is needed, the urgent ones first. */
export function layOut(tasks: RankedTask[]): Layout {
  const columns = new Map<number, RankedTask[]>();
  for (const each of tasks) columns.set(each.rank, [...(columns.get(each.rank) ?? []), each]);
  const placed = new Map<string, Placed>();
  const rows = new Map<string, number>();
  let most = 0;
  [...columns.keys()]
    .sort((one, other) => one - other)
    .forEach((rank, column) => {
      const middle = ({ task }: RankedTask) => {
        const at = task.needs.flatMap((need) => rows.get(need) ?? []);
        return at.length ? at.reduce((sum, row) => sum + row, 0) / at.length : 0;
      };
      const ordered = (columns.get(rank) ?? []).sort(
        (one, other) =>
          middle(one) - middle(other) || one.task.priority - other.task.priority || one.task.number - other.task.number,
      );
      ordered.forEach((of, row) => {
        rows.set(of.task.id, row);
        placed.set(of.task.id, {
          of,
          x: MARGIN + column * (NODE.width + NODE.across),
          y: MARGIN + row * (NODE.height + NODE.down),
        });
      });
      most = Math.max(most, ordered.length);
    });
  const nodes = [...placed.values()];
  const edges = nodes.flatMap((to) =>
    to.of.task.needs.flatMap((need) => {
      const from = placed.get(need);
      return from ? [{ from, to }] : [];
    }),
  );
  return {
    nodes,
    edges,
    width: 2 * MARGIN + columns.size * (NODE.width + NODE.across) - NODE.across,
    height: 2 * MARGIN + most * (NODE.height + NODE.down) - NODE.down,
  };
}

/** A title in two lines of so many characters, the second cut. */
export function twoLines(text: string, length: number): [string, string] {
  const cut = (of: string) => (of.length > length ? `${of.slice(0, length - 1).trimEnd()}…` : of);
  if (text.length <= length) return [text, ""];
  const at = text.lastIndexOf(" ", length);
  return at > length / 3 ? [text.slice(0, at), cut(text.slice(at + 1))] : [text.slice(0, length), cut(text.slice(length))];
}

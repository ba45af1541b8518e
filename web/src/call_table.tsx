// Calls of models, added up in tables.
import type { ComponentChildren } from "preact";
import type { CostRow } from "./api_types.ts";
import { FigureTable, percent, Share, type TableColumn } from "./figures.tsx";
import { dollars, short, whole } from "./format.ts";
import { texts } from "./texts.ts";

const words = texts.costs;
export const MEASURES = ["cost", "tokens", "calls"] as const;
export type Measure = (typeof MEASURES)[number];
export type Taken = Pick<CostRow, "calls" | "input" | "output" | "unknown_costs"> & { cost: number | null };

export const taken: Record<Measure, (row: Taken) => number> = {
  cost: (row) => row.cost ?? 0,
  tokens: (row) => row.input + row.output,
  calls: (row) => row.calls,
};
export const say: Record<Measure, (amount: number) => string> = { cost: dollars, tokens: short, calls: whole };
/** What is known of a cost, and that there is more. */
export const cost = (row: Taken) => (
  <span title={row.unknown_costs ? words.unknown(row.unknown_costs) : undefined}>
    {row.cost === null || (row.cost === 0 && row.unknown_costs === row.calls) ? "–" : dollars(row.cost)}
    {row.unknown_costs > 0 && <span class="note"> +?</span>}
  </span>
);
export const seconds = (of: number | null | undefined) => (of === null || of === undefined ? "–" : `${of.toFixed(of < 10 ? 1 : 0)} s`);

/** The one that took most first, and the column of its share. */
export function sortRows<T extends Taken>(rows: T[], measure: Measure): { rows: T[]; share: TableColumn<T> } {
  const total = rows.reduce((sum, row) => sum + taken[measure](row), 0);
  return {
    rows: [...rows].sort((one, other) => taken[measure](other) - taken[measure](one) || other.calls - one.calls),
    share: {
      title: words.shareOf(words.measures[measure]),
      class: "share",
      cell: (row) => (total ? <Share of={taken[measure](row) / total} /> : "–"),
    },
  };
}

export const Failures = ({ of }: { of: { failures: number } }) => (of.failures ? <span class="bad">{whole(of.failures)}</span> : <>0</>);

/** Calls that have something in common, a row each. */
export function Calls(props: { label: string; what: string; of: CostRow[]; measure: Measure; name: (row: CostRow) => ComponentChildren }) {
  const { rows, share } = sortRows(props.of, props.measure);
  return (
    <FigureTable
      label={props.label}
      rows={rows}
      keyOf={(row) => row.of}
      columns={[
        { title: props.what, cell: props.name },
        share,
        { title: words.measures.cost, cell: cost },
        { title: words.measures.calls, cell: (row) => whole(row.calls) },
        { title: words.failures, cell: (row) => <Failures of={row} /> },
        { title: words.input, cell: (row) => short(row.input) },
        { title: words.output, cell: (row) => short(row.output) },
        { title: words.promptCache, cell: (row) => percent(row.input ? row.cache_read / row.input : null) },
        { title: words.answerCache, cell: (row) => whole(row.cached) },
        { title: words.latency, cell: (row) => seconds(row.latency) },
      ]}
    />
  );
}

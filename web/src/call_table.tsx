// Calls of models, added up in tables.
import type { ComponentChildren } from "preact";
import type { CostRow } from "./api_types.ts";
import { FigureTable, percent, Share } from "./figures.tsx";
import { dollars, short, whole } from "./format.ts";
import * as texts from "./texts.ts";
import { costs as words } from "./texts.ts";

export const MEASURES = ["cost", "tokens", "calls"] as const;
export type Measure = (typeof MEASURES)[number];

export const taken: Record<Measure, (row: CostRow) => number> = {
  cost: (row) => row.cost ?? 0,
  tokens: (row) => row.input + row.output,
  calls: (row) => row.calls,
};
export const say: Record<Measure, (amount: number) => string> = { cost: dollars, tokens: short, calls: whole };
/** What is known of a cost, and that there is more. */
const cost = (row: CostRow) => (
  <span title={row.unknown_costs ? words.unknown(row.unknown_costs) : undefined}>
    {row.cost === null || (row.cost === 0 && row.unknown_costs === row.calls) ? "–" : dollars(row.cost)}
    {row.unknown_costs > 0 && <span class="note"> +?</span>}
  </span>
);
const seconds = (of: number | null | undefined) => (of === null || of === undefined ? "–" : `${of.toFixed(of < 10 ? 1 : 0)} s`);

const Failures = ({ of }: { of: { failures: number } }) => (of.failures ? <span class="bad">{whole(of.failures)}</span> : <>0</>);

/** Calls that have something in common, a row each: the one that took most first. */
export function Calls(props: { label: string; what: string; of: CostRow[]; measure: Measure; name: (row: CostRow) => ComponentChildren }) {
  const amount = taken[props.measure];
  const total = props.of.reduce((sum, row) => sum + amount(row), 0);
  const rows = [...props.of].sort((one, other) => amount(other) - amount(one) || other.calls - one.calls);
  return (
    <FigureTable
      label={props.label}
      rows={rows}
      keyOf={(row) => row.of}
      columns={[
        { title: props.what, cell: props.name },
        {
          title: words.shareOf(texts.measures[props.measure]),
          class: "share",
          cell: (row) => (total ? <Share of={amount(row) / total} /> : "–"),
        },
        { title: texts.measures.cost, cell: cost },
        { title: texts.measures.calls, cell: (row) => whole(row.calls) },
        { title: words.failures, cell: (row) => <Failures of={row} /> },
        { title: words.input, cell: (row) => short(row.input) },
        { title: words.output, cell: (row) => short(row.output) },
        { title: words.promptCache, cell: (row) => percent(row.input ? row.cache_read / row.input : null) },
        { title: words.answerCache, cell: (row) => whole(row.cached) },
        { title: words.quality, cell: (row) => percent(row.quality) },
        { title: words.latency, cell: (row) => seconds(row.latency) },
      ]}
    />
  );
}

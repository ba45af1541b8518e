// What model calls took and cost: by day, agent, task, model and purpose; and what budgets have left.
import type { BudgetStatus, CostReport, CostRow } from "../api_types.ts";
import { Calls, MEASURES, type Measure, say, taken } from "../call_table.tsx";
import { DayChart, FigureTable, Part, percent, Report, Share, Sums, useRenewal } from "../figures.tsx";
import { dollars, exactly, short, when, whole } from "../format.ts";
import { Learning } from "../learning_part.tsx";
import { Choice, Failure, Tabs } from "../panes.tsx";
import { type Place, placeHash } from "../router.ts";
import { useStore } from "../store.ts";
import * as texts from "../texts.ts";
import { costs as words } from "../texts.ts";
import { type PageView, useQuery } from "../views.ts";

const PERIODS = ["7d", "30d", "90d", "400d"] as const;
const DAY_MS = 86_400_000;

function Costs({ place }: { place: Place }) {
  const own = useStore((state) => state.caller?.agent) ?? "";
  const agents = useStore((state) => state.agents) ?? [];
  const since = PERIODS.find((each) => place.rest.includes(each)) ?? "30d";
  const measure = MEASURES.find((each) => place.rest.includes(each)) ?? "cost";
  const agent = place.rest[2] ?? "";
  const to = (next: { since?: string; measure?: string; agent?: string }) => {
    const all = { since, measure, agent, ...next };
    return placeHash({ scope: "bank", view: "costs", rest: [all.since, all.measure, ...(all.agent ? [all.agent] : [])] });
  };
  const query = { since, ...(agent ? { agent } : {}) };
  const costsBy = (by: "day" | "agent" | "task" | "model" | "purpose") =>
    useQuery(`costs ${by} ${since} ${agent}`, (api) => api.get("GET /api/v1/costs", { query: { ...query, by } }));
  const [days, byAgent, tasks, models, purposes] = [costsBy("day"), costsBy("agent"), costsBy("task"), costsBy("model"), costsBy("purpose")];
  const all = [days, byAgent, tasks, models, purposes];
  useRenewal(() => all.forEach((each) => each.refresh()));
  const error = all.find((each) => each.error)?.error;
  const shared = { measure };
  return (
    <Report label={words.title}>
      <div class="choices">
        <Tabs label={words.period} tabs={PERIODS.map((each) => ({ href: to({ since: each }), title: texts.periods[each], isHere: each === since }))} />
        <Tabs label={words.measure} tabs={MEASURES.map((each) => ({ href: to({ measure: each }), title: texts.measures[each], isHere: each === measure }))} />
        {!own && (
          <Choice
            label={words.agent}
            value={agent}
            of={[["", words.allAgents], ...agents.map((each) => [each.agent.name, each.agent.name] as const)]}
            onChange={(agent) => (location.hash = to({ agent }))}
          />
        )}
      </div>
      <Failure text={error ?? ""} />
      {days.data && <Total of={days.data.rows} />}
      {days.data && days.data.rows.length > 0 && (
        <Part title={words.byDay}>
          <DayChart
            label={words.chart(texts.measures[measure])}
            measure={texts.measures[measure]}
            days={everyDay(days.data, measure)}
            say={say[measure]}
          />
        </Part>
      )}
      {days.data && <Budgets of={days.data.budgets} />}
      {!agent && (
        <Rows label={words.byAgent} what={words.agent} of={byAgent.data?.rows ?? []} name={(row) => (row.of ? <a href={to({ agent: row.of })}>{row.of}</a> : words.noAgent)} {...shared} />
      )}
      <Rows label={words.byTask} what={words.task} of={tasks.data?.rows ?? []} name={(row) => row.of || words.noTask} {...shared} />
      <Rows label={words.byModel} what={words.model} of={models.data?.rows ?? []} name={(row) => row.of} {...shared} />
      <Rows label={words.byPurpose} what={words.purpose} of={purposes.data?.rows ?? []} name={(row) => row.of} {...shared} />
      <Learning agent={agent} />
    </Report>
  );
}

function Total({ of }: { of: CostRow[] }) {
  if (!of.length) return <p class="note">{words.none}</p>;
  const sum = (field: "calls" | "failures" | "cached" | "input" | "output" | "cache_read" | "unknown_costs") =>
    of.reduce((total, row) => total + row[field], 0);
  const known = of.filter((row) => row.cost !== null);
  const unknown = sum("unknown_costs");
  const input = sum("input");
  return (
    <Sums
      of={[
        [texts.measures.cost, known.length ? dollars(known.reduce((total, row) => total + row.cost!, 0)) : "–", unknown ? words.unknown(unknown) : ""],
        [texts.measures.calls, whole(sum("calls")), sum("failures") ? words.failed(sum("failures")) : ""],
        [words.input, short(input), ""],
        [words.output, short(sum("output")), ""],
        [words.promptCache, percent(input ? sum("cache_read") / input : null), words.promptCacheHint],
        [words.answerCache, percent(sum("cached") / sum("calls")), words.answerCacheHint],
      ]}
    />
  );
}

/** Days without a call are days, too. */
function everyDay(report: CostReport, measure: Measure): [string, number][] {
  const known = new Map(report.rows.map((row) => [row.of, taken[measure](row)]));
  const first = Date.parse((report.since ?? report.rows[0]?.of ?? "").slice(0, 10));
  const found: [string, number][] = [];
  for (let at = first; at <= Date.now(); at += DAY_MS) {
    const day = new Date(at).toISOString().slice(0, 10);
    found.push([day, known.get(day) ?? 0]);
  }
  return found;
}

function Rows(props: Parameters<typeof Calls>[0]) {
  return props.of.length ? (
    <Part title={props.label}>
      <Calls {...props} />
    </Part>
  ) : null;
}

/** One row for each thing that a budget limits. */
function Budgets({ of }: { of: BudgetStatus[] }) {
  const rows = of.flatMap(({ budget, agent, period, renews, spending }) => {
    const about = { name: budget.name, whose: [agent || budget.agent, budget.purpose].filter((each) => each && each !== "*").join(", "), period, renews, per: budget.per ?? "day" };
    const limits = [
      { ...about, limit: budget.cost, spent: spending.cost ?? 0, held: spending.held_cost ?? 0, say: dollars },
      { ...about, limit: budget.tokens, spent: spending.tokens ?? 0, held: spending.held_tokens ?? 0, say: (tokens: number) => words.tokens(short(tokens)) },
    ];
    return limits.flatMap((each) => (each.limit === null || each.limit === undefined ? [] : [{ ...each, limit: each.limit }]));
  });
  return (
    <Part title={words.budgets}>
      {rows.length ? (
        <FigureTable
          label={words.budgets}
          rows={rows}
          keyOf={(row) => `${row.name} ${row.whose} ${row.say(0)}`}
          columns={[
            { title: words.budget, cell: (row) => [row.name, row.whose].filter(Boolean).join(" · ") },
            {
              title: words.used,
              class: "share",
              cell: (row) => <Share of={row.limit ? row.spent / row.limit : 1} held={row.limit ? row.held / row.limit : 0} />,
            },
            { title: words.left, cell: (row) => <Left amount={Math.max(0, row.limit - row.spent - row.held)} say={row.say} /> },
            { title: words.spent, cell: (row) => row.say(row.spent) },
            { title: words.reserved, cell: (row) => row.say(row.held) },
            { title: words.limit, cell: (row) => `${row.say(row.limit)} ${texts.budgetPeriods[row.per]}` },
            { title: words.renews, cell: (row) => <span title={exactly(row.renews)}>{when(row.renews) || "–"}</span> },
          ]}
        />
      ) : (
        <p class="note">{words.noBudgets}</p>
      )}
    </Part>
  );
}

const Left = ({ amount, say }: { amount: number; say: (amount: number) => string }) =>
  amount ? <>{say(amount)}</> : <span class="bad">{words.nothingLeft}</span>;

export default { name: "costs", title: words.title, scope: "bank", order: 60, View: Costs } satisfies PageView;

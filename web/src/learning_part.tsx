// What agents learn: which model each task asks and why, and tests of variants with their intervals.
import { useMayWrite } from "./acting.ts";
import type { AgentEvolution, EvolutionStep, Experiment, ExperimentVerdict, StrategyChanges } from "./api_types.ts";
import { FigureTable, Part, percent } from "./figures.tsx";
import { Fold } from "./fold.tsx";
import { dollars, exactly, short, when } from "./format.ts";
import { Act, Failure } from "./panes.tsx";
import { sync } from "./sync.ts";
import * as texts from "./texts.ts";
import { learning as words } from "./texts.ts";
import { useQuery } from "./views.ts";

const decimals = (of: number) => of.toFixed(2);
/** An estimate may lie a little outside of what there is. */
const within = (of: number) => Math.min(Math.max(of, 0), 1);
const signed = (of: number) => `${of < 0 ? "−" : "+"}${decimals(Math.abs(of))}`;

/** How a strategy differs from what is configured. */
const changes = ({ models = {}, prompt_version = 0, budget = 0, recall = null }: StrategyChanges) =>
  [
    ...Object.entries(models).map(([task, model]) => (task === "*" ? model : words.modelFor(model, task))),
    prompt_version ? words.prompt(prompt_version) : "",
    budget ? words.budget(short(budget)) : "",
    recall === null ? "" : recall ? words.recall : words.noRecall,
  ]
    .filter(Boolean)
    .join(", ") || words.configured;

/** Of one agent, or of all. */
export function Learning({ agent }: { agent: string }) {
  const { data, error, refresh } = useQuery(`learning ${agent}`, (api) => api.get("GET /api/v1/learning", { query: agent ? { agent } : {} }));
  const known = (data ?? []).filter((each) => each.choices?.length || each.steps.length);
  return (
    <Part title={words.title}>
      <Failure text={error} />
      {data && <p class="note">{known.length ? words.how : words.none}</p>}
      {known.map((each) => (
        <Learnt key={each.agent} of={each} onChange={refresh} />
      ))}
    </Part>
  );
}

function Learnt({ of, onChange }: { of: AgentEvolution; onChange: () => void }) {
  const { agent, experiment, steps, choices = [] } = of;
  const mayWrite = useMayWrite();
  const decide = (what: "accept" | "dismiss" | "revert") => async () => {
    await sync.api.call(`POST /api/v1/agents/{agent}/evolution/${what}`, { path: { agent } });
    onChange();
  };
  const rows = choices.flatMap(({ task, by, models }) => models.map((model, place) => ({ task, by, model, place })));
  const works = changes(of.strategy);
  return (
    <section class="learnt" aria-label={agent}>
      <h3>{agent}</h3>
      {rows.length > 0 && (
        <FigureTable
          label={words.of(agent)}
          rows={rows}
          keyOf={(row) => `${row.task} ${row.model.model}`}
          columns={[
            { title: words.task, cell: (row) => <span class={row.place ? "note" : ""}>{row.task}</span> },
            { title: words.model, class: "share", cell: (row) => row.model.model },
            { title: words.order, class: "share", cell: (row) => (row.place ? words.then : texts.choiceReasons[row.by]) },
            { title: words.worth, cell: (row) => decimals(row.model.utility) },
            { title: words.quality, cell: (row) => `${decimals(within(row.model.quality))} ± ${decimals(row.model.uncertainty)}` },
            { title: words.success, cell: (row) => percent(row.model.success) },
            { title: words.cost, cell: (row) => dollars(row.model.dollars * 1e12) },
            { title: words.time, cell: (row) => `${row.model.seconds.toFixed(1)} s` },
          ]}
        />
      )}
      {works !== words.configured && <p>{words.works(works)}</p>}
      {experiment && <Test of={experiment} />}
      {mayWrite && (
        <div class="acts">
          {experiment?.state === "better" && <Act label={words.accept} work={decide("accept")} />}
          {experiment && <Act label={words.dismiss} work={decide("dismiss")} />}
          {works !== words.configured && <Act label={words.revert} work={decide("revert")} />}
        </div>
      )}
      {steps.length > 0 && <Fold label={words.steps(steps.length)}>{() => <Steps label={words.steps(steps.length)} of={steps} />}</Fold>}
    </section>
  );
}

function Test({ of }: { of: Experiment }) {
  return (
    <>
      <p>
        <strong>{of.state === "better" ? words.won : words.running}</strong> {words.test(changes(of.variant), when(of.started), of.reason ?? "")}
      </p>
      {of.verdict && <Interval of={of.verdict} />}
    </>
  );
}

const bounds = ({ difference: { mean, low, high } }: ExperimentVerdict) =>
  // Without bounds yet, they are infinite, which JSON does not know.
  low === null || high === null ? signed(mean) : words.between(signed(mean), signed(low), signed(high));

/** How much better the variant is, and where that lies with certainty: a line about zero. */
function Interval({ of }: { of: ExperimentVerdict }) {
  const { control, variant, difference } = of;
  const { mean, low, high } = difference;
  const worth = ({ sessions = 0, total = 0 }) => decimals(sessions ? total / sessions : 0);
  const text = words.evidence(control.sessions ?? 0, worth(control), variant.sessions ?? 0, worth(variant));
  const most = Math.max(Math.abs(low ?? 0), Math.abs(high ?? 0), Math.abs(mean), 0.01) * 1.15;
  const at = (value: number) => `${50 + (value / most) * 50}%`;
  return (
    <div class="interval">
      {low !== null && high !== null && (
        <svg role="img" aria-label={bounds(of)}>
          <line class="axis" x1="0" x2="100%" y1="12" y2="12" />
          <line class="axis" x1="50%" x2="50%" y1="0" y2="24" />
          <line class="range" x1={at(low)} x2={at(high)} y1="12" y2="12" />
          <circle cx={at(mean)} cy="12" r="4.5" />
        </svg>
      )}
      <span>
        {text} {words.difference(bounds(of))}
      </span>
    </div>
  );
}

const Steps = ({ label, of }: { label: string; of: EvolutionStep[] }) => (
  <FigureTable
    label={label}
    rows={of}
    keyOf={(step) => step.id}
    columns={[
      { title: words.when, cell: (step) => <span title={exactly(step.at)}>{when(step.at)}</span> },
      { title: words.what, class: "share", cell: (step) => texts.evolutionSteps[step.kind] },
      { title: words.why, class: "words", cell: (step) => step.reason },
      { title: words.differs, cell: (step) => (step.evidence ? bounds(step.evidence) : "–") },
      { title: words.by, class: "share", cell: (step) => step.by },
    ]}
  />
);

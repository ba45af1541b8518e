// Jobs and health: what runs in the background, what it spends, what failed, what the bank holds,
// and whether it is sound.
import { useState } from "preact/hooks";
import type { BankInfo, BatchView, CostRow, JobReport, JobView, NamedRun, ProxyFigures } from "../api_types.ts";
import { useMayWrite } from "../acting.ts";
import { Calls } from "../call_table.tsx";
import { FigureTable, Part, Report, Share, Sums, useRenewal } from "../figures.tsx";
import { ago, bytes, dollars, exactly, short, whole } from "../format.ts";
import { Act, Failure } from "../panes.tsx";
import { placeHash } from "../router.ts";
import { useStore } from "../store.ts";
import { sync } from "../sync.ts";
import * as texts from "../texts.ts";
import { health as words } from "../texts.ts";
import { type PageView, useQuery } from "../views.ts";

/** What is asked without anybody waiting for it. */
const BEHIND = ["compress", "filter", "judge", "reflect", "embed"];
const BAD = ["failed", "stopped", "refused"];

const State = ({ of }: { of: string }) => <span class={BAD.includes(of) ? "bad" : ""}>{of.replace("_", " ")}</span>;

const Since = ({ of }: { of: number | string }) => <span title={exactly(of)}>{ago(of)}</span>;

function Health() {
  const jobs = useQuery("jobs", (api) => api.get("GET /api/v1/jobs", {}), ["job"]);
  const costs = useQuery("costs purpose 30d ", (api) => api.get("GET /api/v1/costs", { query: { since: "30d", by: "purpose" } }));
  const batches = useQuery("batches", (api) => api.get("GET /api/v1/batches", { query: { limit: 10 } }), ["job"]);
  const runs = useQuery("reflections  10", (api) => api.get("GET /api/v1/reflections", { query: { limit: 10 } }), ["job"]);
  const proxy = useQuery("proxy", (api) => api.get("GET /api/v1/proxy", {}));
  const bank = useQuery("bank", (api) => api.get("GET /api/v1/bank", {}));
  const all = [jobs, costs, batches, runs, proxy, bank];
  useRenewal(() => all.forEach((each) => each.refresh()));
  const error = all.find((each) => each.error)?.error;
  return (
    <Report label={words.title}>
      <Failure text={error ?? ""} />
      {jobs.data && <Jobs of={jobs.data} onRetry={jobs.refresh} />}
      <Spent of={costs.data?.rows} />
      <Batches of={batches.data} />
      <Runs of={runs.data} />
      {proxy.data && <Proxy of={proxy.data} />}
      {bank.data && <Storage of={bank.data} />}
    </Report>
  );
}

function Jobs({ of, onRetry }: { of: JobReport; onRetry: () => void }) {
  const count = (state: string) => of.sums.reduce((sum, each) => sum + (each.state === state ? each.count : 0), 0);
  const failed = of.jobs.filter((each) => each.state === "failed");
  const kinds = [...new Set(of.sums.map((each) => each.kind))];
  const ofKind = (kind: string, state: string) => whole(of.sums.find((each) => each.kind === kind && each.state === state)?.count ?? 0);
  return (
    <>
      <Sums
        of={[
          [words.running, whole(count("running")), ""],
          [words.waiting, whole(count("pending")), ""],
          [words.failed, whole(count("failed")), ""],
          [words.done, whole(of.ended.done ?? 0), of.ended.retried ? words.retried(of.ended.retried) : words.sinceStart],
        ]}
      />
      <Part title={words.jobs}>
        {kinds.length ? (
          <FigureTable
            label={words.jobs}
            rows={kinds}
            keyOf={(kind) => kind}
            columns={[
              { title: words.kind, cell: (kind) => kind },
              { title: words.running, cell: (kind) => ofKind(kind, "running") },
              { title: words.waiting, cell: (kind) => ofKind(kind, "pending") },
              { title: words.failed, cell: (kind) => ofKind(kind, "failed") },
            ]}
          />
        ) : (
          <p class="note">{words.noJobs}</p>
        )}
      </Part>
      {failed.length > 0 && <Failed of={failed} onRetry={onRetry} />}
    </>
  );
}

function Failed({ of, onRetry }: { of: JobView[]; onRetry: () => void }) {
  const mayWrite = useMayWrite();
  const retry = async (job: string) => {
    await sync.api.call("POST /api/v1/jobs/retry", { body: { job } });
    onRetry();
  };
  return (
    <Part title={words.failedJobs}>
      <FigureTable
        label={words.failedJobs}
        rows={of}
        keyOf={(job) => job.id}
        columns={[
          { title: words.job, cell: (job) => job.id },
          { title: words.why, class: "words", cell: (job) => <span class="bad">{job.error}</span> },
          { title: words.attempts, cell: (job) => job.attempts },
          { title: words.since, cell: (job) => <Since of={job.due} /> },
          ...(mayWrite ? [{ title: words.act, cell: (job: JobView) => <Act label={words.again} work={() => retry(job.id)} onConflict={onRetry} /> }] : []),
        ]}
      />
    </Part>
  );
}

function Spent({ of }: { of: CostRow[] | undefined }) {
  const rows = of?.filter((row) => BEHIND.includes(row.of));
  return rows ? (
    <Part title={words.spends}>
      {rows.length ? <Calls label={words.spends} what={texts.costs.purpose} of={rows} name={(row) => row.of} measure="cost" /> : <p class="note">{words.spendsNothing}</p>}
    </Part>
  ) : null;
}

function Batches({ of }: { of: BatchView[] | undefined }) {
  if (!of?.length) return null;
  return (
    <Part title={words.batches}>
      <FigureTable
        label={words.batches}
        rows={of}
        keyOf={(batch) => batch.id}
        columns={[
          { title: words.for, cell: (batch) => [batch.agent, batch.purpose, batch.task].filter(Boolean).join(" · ") },
          { title: words.state, cell: (batch) => <State of={batch.state} /> },
          { title: texts.costs.model, cell: (batch) => `${batch.provider}/${batch.model}` },
          { title: words.requests, cell: (batch) => whole(batch.items) },
          { title: words.failed, cell: (batch) => whole(batch.counts.failed ?? 0) },
          { title: texts.measures.cost, cell: (batch) => dollars(batch.cost) },
          { title: words.since, cell: (batch) => <Since of={batch.written} /> },
          { title: words.why, class: "words", cell: (batch) => <span class="bad">{batch.error}</span> },
        ]}
      />
    </Part>
  );
}

function Runs({ of }: { of: NamedRun[] | undefined }) {
  if (!of?.length) return null;
  return (
    <Part title={words.reflection}>
      <FigureTable
        label={words.reflection}
        rows={of}
        keyOf={({ name }) => name}
        columns={[
          { title: words.run, cell: ({ name }) => <a href={placeHash({ scope: "bank", view: "inbox", rest: name.split("/") })}>{name}</a> },
          { title: words.state, cell: ({ run }) => <State of={run.state} /> },
          { title: texts.measures.cost, cell: ({ run }) => (run.mode ? dollars(run.cost) : "–") },
          { title: words.since, cell: ({ run }) => <Since of={run.started} /> },
          { title: words.why, class: "words", cell: ({ run }) => run.why ?? "" },
        ]}
      />
    </Part>
  );
}

function Proxy({ of }: { of: ProxyFigures }) {
  const requests = Object.values(of.requests ?? {}).reduce((sum, each) => sum + each, 0);
  return (
    <Part title={words.proxy}>
      {of.is_paused && <p class="bad">{words.paused}</p>}
      {requests + (of.failures ?? 0) ? (
        <>
          <Sums
            of={[
              [words.requests, whole(requests), of.failed_upstream ? words.failedUpstream(of.failed_upstream) : ""],
              [texts.costs.input, short(of.input ?? 0), of.input_alone ? words.alone(short(of.input_alone)) : ""],
              [texts.measures.cost, dollars(of.cost), of.cost_alone ? words.alone(dollars(of.cost_alone)) : ""],
              [words.ownFailures, whole(of.failures ?? 0), ""],
            ]}
          />
          {of.failure && <p class="bad">{of.failure}</p>}
        </>
      ) : (
        <p class="note">{words.noProxy}</p>
      )}
    </Part>
  );
}

function Storage({ of }: { of: BankInfo }) {
  const total = of.collections.reduce((sum, each) => sum + (each.bytes ?? 0), 0);
  const rows = [...of.collections].sort((one, other) => (other.bytes ?? 0) - (one.bytes ?? 0) || other.rows - one.rows);
  return (
    <Part title={words.storage}>
      <p class="note">{[of.backend, of.url, ...(total ? [bytes(total)] : [])].join(" · ")}</p>
      <Check />
      <FigureTable
        label={words.storage}
        rows={rows}
        keyOf={(row) => row.collection}
        columns={[
          { title: words.collection, cell: (row) => row.collection },
          { title: texts.figures.share, class: "share", cell: (row) => (total ? <Share of={(row.bytes ?? 0) / total} /> : "–") },
          { title: words.size, cell: (row) => (row.bytes === null ? "–" : bytes(row.bytes)) },
          { title: words.records, cell: (row) => whole(row.rows) },
        ]}
      />
    </Part>
  );
}

function Check() {
  const mayCheck = useStore((state) => state.caller?.scopes.includes("admin") ?? false);
  const [said, setSaid] = useState<{ text: string; problems: string[] } | null>(null);
  if (!mayCheck) return null;
  const verify = async () => {
    setSaid({ text: words.checking, problems: [] });
    try {
      // However long it takes.
      const found = await sync.api.get("GET /api/v1/checks/bank", {}, new AbortController().signal);
      const problems = found.problems.map((each) => `${each.subject}: ${each.what}`);
      setSaid({ text: found.ok ? words.sound(whole(found.records)) : words.unsound(problems.length, whole(found.records)), problems });
    } catch (error) {
      setSaid(null);
      throw error;
    }
  };
  return (
    <div class="acts">
      <Act label={words.verify} title={words.verifyHint} work={verify} />
      <span role="status" class={said?.problems.length ? "bad" : ""}>
        {said?.text}
      </span>
      {said && said.problems.length > 0 && (
        <ul class="problems">
          {said.problems.map((each) => (
            <li key={each}>{each}</li>
          ))}
        </ul>
      )}
    </div>
  );
}

export default { name: "health", title: words.title, scope: "bank", order: 80, View: Health } satisfies PageView;

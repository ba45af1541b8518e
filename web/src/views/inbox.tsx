// Messages for the administrator: what reflection proposes, and what it stumbled over; and its runs.
import { useState } from "preact/hooks";
import "../inbox.css";
import { useMayWrite } from "../acting.ts";
import type { InboxMessage, MemoryOperation, NamedRun, RunDetails } from "../api_types.ts";
import { dollars, exactly, short } from "../format.ts";
import { Markdown } from "../markdown_view.tsx";
import { memoryHash, memoryPath } from "../memory_parts.tsx";
import { Act, Choice, Entry, Facts, Failure, Panes, Quotes, Tabs, TurnLink } from "../panes.tsx";
import { type Place, placeHash } from "../router.ts";
import { sync } from "../sync.ts";
import * as texts from "../texts.ts";
import { inbox as words } from "../texts.ts";
import { type PageView, useQuery } from "../views.ts";

const PERSON = { person: true };
/** What can be accepted: it is carried out then. All else is read, and put away. */
const ACCEPTED = ["proposal", "layer", "candidate", "contradiction"];

type Links = (name: string, view?: string[]) => string;

function Inbox({ place }: { place: Place }) {
  const { agent, rest } = place;
  const last = rest.at(-1) ?? "";
  const owner = agent || rest[0] || "";
  const isRuns = last === "runs" || /^R-\d+$/.test(last);
  const chosen = /^[IR]-\d+$/.test(last) && owner !== last ? `${owner}/${last}` : "";
  const link: Links = (name, view = []) => {
    const { agent: of, key } = memoryPath(name);
    return placeHash({ scope: place.scope, agent, view: "inbox", rest: name ? (agent ? [key] : [of, key]) : view });
  };
  return (
    <>
      <Tabs
        label={words.parts}
        tabs={[
          { href: link(""), title: words.messages, isHere: !isRuns },
          { href: link("", ["runs"]), title: words.runs, isHere: isRuns },
        ]}
      />
      {isRuns ? <Runs agent={agent} chosen={chosen} link={link} /> : <Messages agent={agent} chosen={chosen} link={link} />}
    </>
  );
}

// Messages -----------------------------------------------------------------------------------

function Messages({ agent, chosen, link }: { agent: string; chosen: string; link: Links }) {
  const [status, setStatus] = useState("open");
  const [kind, setKind] = useState("");
  const { data, error, refresh } = useQuery(
    `inbox ${agent} ${status}`,
    (api) => api.get("GET /api/v1/inbox", { query: { ...(agent ? { agent } : {}), status } }),
    ["job"],
  );
  const found = (data ?? []).filter((each) => !kind || each.message.kind === kind);
  return (
    <>
      <div class="bar">
        <Choice
          label={words.status}
          value={status}
          of={Object.entries(texts.inboxStatuses)}
          onChange={setStatus}
        />
        <Choice label={words.kind} value={kind} of={[["", words.anyKind], ...Object.entries(texts.inboxKinds)]} onChange={setKind} />
        <span class="count" role="status">
          {data && words.count(found.length)}
        </span>
        <Failure text={error} />
      </div>
      <Panes
        back={link("")}
        list={
          <>
            {data && !found.length && <p class="nothing">{words.none}</p>}
            <ul class="entries">
              {found.map(({ name, message }) => (
                <li key={name}>
                  <Entry
                    class={message.status && message.status !== "open" ? "read" : ""}
                    href={link(name)}
                    isChosen={name === chosen}
                    what={message.title}
                    at={message.created}
                  >
                    <span>{texts.inboxKinds[message.kind]}</span>
                    {message.status && message.status !== "open" && <span>{texts.inboxStatuses[message.status]}</span>}
                    {!agent && <span>{message.agent}</span>}
                  </Entry>
                </li>
              ))}
            </ul>
          </>
        }
      >
        {chosen ? (
          <Message
            key={chosen}
            name={chosen}
            listed={data?.find((each) => each.name === chosen)?.message}
            link={link}
            onChange={refresh}
          />
        ) : null}
      </Panes>
    </>
  );
}

function MemoryLinks({ of, agent }: { of: string[]; agent: string }) {
  return (
    <span class="refs">
      {of.map((each) => {
        const name = each.includes("/") ? each : `${agent}/${each}`;
        return (
          <a key={each} class="ref" href={memoryHash(name)}>
            {name}
          </a>
        );
      })}
    </span>
  );
}

function Message(props: { name: string; listed: InboxMessage | undefined; link: Links; onChange: () => void }) {
  const { name, listed, link } = props;
  const { agent, key: number } = memoryPath(name);
  const path = { agent, message: number };
  const mayWrite = useMayWrite();
  const own = useQuery(`message ${name}`, (api) => api.get("GET /api/v1/inbox/{agent}/{message}", { path }));
  const message = own.data?.message ?? listed;
  if (!message) return <p class={own.error ? "error" : "nothing"}>{own.error}</p>;
  const decide = async (what: "accept" | "dismiss") => {
    await sync.api.call(`POST /api/v1/inbox/{agent}/{message}/${what}`, { path, body: PERSON });
    own.refresh();
    props.onChange();
  };
  const status = message.status ?? "open";
  return (
    <article class="whole" aria-label={name}>
      <p class="about">
        <span class="ref">{name}</span>
        <span>{texts.inboxKinds[message.kind]}</span>
        {status !== "open" && <span class="mark">{texts.inboxStatuses[status]}</span>}
      </p>
      <h2>{message.title}</h2>
      {mayWrite && status === "open" && (
        <div class="acts">
          {ACCEPTED.includes(message.kind) && (
            <Act label={words.accept} work={() => decide("accept")} onConflict={own.refresh} />
          )}
          <Act label={words.dismiss} work={() => decide("dismiss")} onConflict={own.refresh} />
        </div>
      )}
      <Failure text={own.error} />
      {message.text && <Markdown text={message.text} />}
      {message.operation && <Operation of={message.operation} />}
      <Facts
        of={[
          [words.memories, message.keys?.length ? <MemoryLinks of={message.keys} agent={agent} /> : ""],
          [words.made, message.memory ? <MemoryLinks of={[message.memory]} agent={agent} /> : ""],
          [
            words.run,
            message.run ? (
              <a class="ref" href={link(message.run)}>
                {message.run}
              </a>
            ) : (
              ""
            ),
          ],
          [words.created, exactly(message.created)],
          [words.decided, message.decided ? `${exactly(message.decided)} · ${message.by}` : ""],
        ]}
      />
      {message.quotes?.length ? <h2 class="part">{words.quotes}</h2> : null}
      <Quotes of={message.quotes ?? []} />
    </article>
  );
}

function Operation({ of }: { of: MemoryOperation }) {
  return (
    <>
      <h2 class="part">{words.would}</h2>
      <Facts
        of={[
          [words.operation, [texts.memoryOperations[of.op], of.kind ?? ""].filter(Boolean).join(" · ")],
          [words.title, of.title],
          [words.text, of.text ? <span class="said">{of.text}</span> : ""],
          [words.tags, of.tags?.join(", ")],
          [words.reason, of.reason],
        ]}
      />
    </>
  );
}

// Runs ---------------------------------------------------------------------------------------

const total = (of: Record<string, number> | undefined): number => Object.values(of ?? {}).reduce((sum, each) => sum + each, 0);
const listed = (of: Record<string, number> | undefined): string =>
  Object.entries(of ?? {})
    .map(([what, count]) => `${count} × ${what}`)
    .join(", ");

function Runs({ agent, chosen, link }: { agent: string; chosen: string; link: Links }) {
  const [limit, setLimit] = useState(50);
  const { data, error, refresh } = useQuery(
    `reflections ${agent} ${limit}`,
    (api) => api.get("GET /api/v1/reflections", { query: { ...(agent ? { agent } : {}), limit } }),
    ["job"],
  );
  const mayWrite = useMayWrite();
  return (
    <>
      <div class="bar">
        {mayWrite && agent && (
          <Act
            label={words.reflect}
            title={words.reflectHint}
            work={async () => {
              await sync.api.call("POST /api/v1/reflections/{agent}", { path: { agent }, body: {} });
              refresh();
            }}
          />
        )}
        <span class="count" role="status">
          {data && words.runCount(data.length)}
        </span>
        <Failure text={error} />
      </div>
      <Panes
        back={link("", ["runs"])}
        list={
          <>
            {data?.length === 0 && <p class="nothing">{words.noRuns}</p>}
            <ul class="entries">
              {data?.map((each) => <RunRow key={each.name} of={each} href={link(each.name)} isChosen={each.name === chosen} hasAgent={!agent} />)}
            </ul>
            {data?.length === limit && (
              <button class="quiet wide" onClick={() => setLimit(limit * 4)}>
                {words.more}
              </button>
            )}
          </>
        }
      >
        {chosen ? <Run key={chosen} name={chosen} link={link} onChange={refresh} /> : null}
      </Panes>
    </>
  );
}

function RunRow({ of: { name, run }, href, isChosen, hasAgent }: { of: NamedRun; href: string; isChosen: boolean; hasAgent: boolean }) {
  const { counts = {} } = run;
  return (
    <li>
      <Entry href={href} isChosen={isChosen} what={words.did(total(counts.applied), counts.messages ?? 0)} at={run.started}>
        <span class="ref">{hasAgent ? name : memoryPath(name).key}</span>
        <span class={run.state === "stopped" || run.state === "refused" ? "error" : ""}>{texts.runStates[run.state]}</span>
        <span>{run.mode ? texts.runModes[run.mode] : words.algorithm}</span>
        {run.mode && <span>{dollars(run.cost)}</span>}
      </Entry>
    </li>
  );
}

function Run({ name, link, onChange }: { name: string; link: Links; onChange: () => void }) {
  const { agent, key } = memoryPath(name);
  const path = { agent, run: key };
  const mayWrite = useMayWrite();
  const { data, error, refresh } = useQuery(`reflection ${name}`, (api) => api.get("GET /api/v1/reflections/{agent}/{run}", { path }), ["job"]);
  const messages = useQuery(`inbox ${agent} any`, (api) => api.get("GET /api/v1/inbox", { query: { agent, status: "any" } }));
  if (!data) return <p class={error ? "error" : "nothing"}>{error}</p>;
  const { run } = data;
  const left = (messages.data ?? []).filter((each) => each.message.run === name);
  const undo = async () => {
    await sync.api.call("POST /api/v1/reflections/{agent}/{run}/undo", { path });
    refresh();
    messages.refresh();
    onChange();
  };
  return (
    <article class="whole" aria-label={name}>
      <p class="about">
        <span class="ref">{name}</span>
        <span>{texts.runStates[run.state]}</span>
      </p>
      <h2>{words.did(total(run.counts?.applied), run.counts?.messages ?? 0)}</h2>
      {run.why && <p class="error">{run.why}</p>}
      <Failure text={error} />
      {mayWrite && data.undoable && run.state !== "undone" && (
        <div class="acts">
          <Act label={words.undo} title={words.undoHint} work={undo} onConflict={refresh} />
        </div>
      )}
      <Facts
        of={[
          [words.began, [exactly(run.started), texts.runTriggers[run.trigger ?? "hand"]].join(" · ")],
          [words.ended, run.ended ? exactly(run.ended) : ""],
          [words.mode, run.mode ? texts.runModes[run.mode] : words.algorithm],
          [words.applied, listed(run.counts?.applied)],
          [words.refused, listed(run.counts?.refused)],
          [words.cost, run.mode ? `${dollars(run.cost)} · ${words.tokens(short(run.tokens ?? 0))}` : ""],
          [words.expected, run.mode ? `${dollars(run.expected_cost)} · ${words.tokens(short(run.expected_tokens ?? 0))}` : ""],
          [words.waiting, run.waiting_turns ? words.turns(run.waiting_turns) : ""],
          [
            words.sessions,
            run.spans?.length ? (
              <span class="refs">
                {run.spans.map(([session, first, last]) => (
                  <span key={`${session} ${first}`}>
                    <TurnLink of={`${session}#T-${first}`} />–{last}
                  </span>
                ))}
              </span>
            ) : (
              ""
            ),
          ],
        ]}
      />
      <Operations of={data} agent={agent} />
      {left.length > 0 && (
        <>
          <h2 class="part">{words.messages}</h2>
          <ul>
            {left.map((each) => (
              <li key={each.name}>
                <a href={link(each.name)}>{each.message.title}</a>
              </li>
            ))}
          </ul>
        </>
      )}
    </article>
  );
}

function Operations({ of, agent }: { of: RunDetails; agent: string }) {
  if (!of.operations?.length) return null;
  return (
    <>
      <h2 class="part">{words.done}</h2>
      <ol class="done">
        {of.operations.map((each, at) => (
          <li key={at} class="version">
            <p class="about">
              <span>{texts.memoryOperations[each.op as MemoryOperation["op"]] ?? each.op}</span>
              {each.keys?.length ? <MemoryLinks of={each.keys} agent={agent} /> : null}
              {each.refused && <span class="error">{words.wasRefused(each.refused)}</span>}
            </p>
            {each.text && <p>{each.text}</p>}
            {each.evidence?.length ? (
              <p class="refs">
                {each.evidence.map((turn) => (
                  <TurnLink key={turn} of={turn.includes("#") ? turn : ""} />
                ))}
              </p>
            ) : null}
          </li>
        ))}
      </ol>
    </>
  );
}

const of = { name: "inbox", title: words.name, View: Inbox };
export default [
  { ...of, scope: "agent", order: 45 },
  { ...of, scope: "bank", order: 45 },
] satisfies PageView[];


// The frame around the views: agents and sessions at the left, the view of the place at the right,
// and the layers above (keys, search).
import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import { sessionPath } from "./api.ts";
import type { AgentActivity, SessionInfo } from "./api_types.ts";
import { download } from "./download.ts";
import { ago, exactly, short } from "./format.ts";
import { Guard } from "./guard.tsx";
import { isAlive } from "./history.ts";
import { addKeys } from "./keys.ts";
import { KeysLayer } from "./keys_layer.tsx";
import { Login } from "./login.tsx";
import { memo } from "./memo.ts";
import { Act } from "./panes.tsx";
import { placeHash } from "./router.ts";
import { SearchLayer } from "./search_layer.tsx";
import { listedAgent, store, useStore } from "./store.ts";
import { sync } from "./sync.ts";
import * as texts from "./texts.ts";
import { nextTheme } from "./theme.ts";
import { go, viewAt, viewsOf } from "./views.ts";

export function Shell() {
  const connection = useStore((state) => state.connection);
  const isKnown = useStore((state) => state.agents !== null);
  const layer = useStore((state) => state.layer);
  const place = useStore((state) => state.place);
  useLayoutEffect(() => addKeys(shellKeys()), []);
  useEffect(() => {
    const name = place.session || place.agent;
    document.title = name ? `${name} · ${texts.title}` : texts.title;
  }, [place.session, place.agent]);
  if (connection === "out" && !isKnown) return <Login />;
  const view = viewAt(place);
  return (
    <div class={place.scope === "bank" && !place.view ? "shell at-lists" : "shell"}>
      <a class="skip" href="#content" onClick={skip}>
        {texts.skip}
      </a>
      <Sidebar />
      <main id="content" tabIndex={-1} aria-label={view?.title ?? texts.title}>
        {connection === "out" && <Ended />}
        <Header />
        {view ? (
          <Guard key={`${place.session}|${place.agent}|${view.name}`}>
            <view.View place={place} />
          </Guard>
        ) : (
          <Nothing hasTitle={place.scope !== "bank"} />
        )}
      </main>
      {layer === "keys" && <KeysLayer />}
      {layer === "search" && <SearchLayer />}
    </div>
  );
}

function skip(event: Event): void {
  event.preventDefault();
  document.getElementById("content")?.focus();
}

const Nothing = ({ hasTitle }: { hasTitle: boolean }) => (
  <>
    {!hasTitle && <h1 class="hidden">{texts.title}</h1>}
    <p class="nothing">{texts.nothingHere}</p>
  </>
);

const Ended = () => (
  <p class="banner" role="alert">
    {texts.login.ended} {texts.login.how}
    <button onClick={() => void sync.logOut()}>{texts.login.enter}</button>
  </p>
);

// At the left --------------------------------------------------------------------------------

function Sidebar() {
  const agents = useStore((state) => state.agents);
  const place = useStore((state) => state.place);
  const agent = useStore(listedAgent);
  return (
    <nav class="sidebar" aria-label={texts.menu}>
      <div class="brand">
        <a href="#/" class="name">
          {texts.title}
        </a>
        <Connection />
        <button class="quiet" title={texts.keys.search} aria-label={texts.keys.search} onClick={() => store.setState({ layer: "search" })}>
          <kbd>/</kbd>
        </button>
        <button class="quiet" title={texts.keysTitle} aria-label={texts.keysTitle} onClick={() => store.setState({ layer: "keys" })}>
          <kbd>?</kbd>
        </button>
      </div>
      <section class="agents" aria-labelledby="agents-title">
        <h2 id="agents-title">{texts.agents}</h2>
        <ul>
          {(agents ?? []).map((each) => (
            <AgentRow key={each.agent.name} activity={each} isChosen={each.agent.name === place.agent} />
          ))}
        </ul>
        {agents?.length === 0 && <p class="nothing">{texts.noAgents}</p>}
      </section>
      {agent && <Sessions agent={agent} />}
      <Foot />
    </nav>
  );
}

function Connection() {
  const connection = useStore((state) => state.connection);
  const isAway = connection === "away" || connection === "out";
  return (
    <span class="connection" role="status">
      {isAway && (
        <span class="away" title={texts.awayHint}>
          {texts.away}
        </span>
      )}
    </span>
  );
}

/** The session of the agent in which an answer arrives, as this page hears it. */
function typingIn(agent: string): string {
  const now = Date.now();
  for (const [name, { answers }] of Object.entries(store.getState().histories)) {
    if (!name.startsWith(`${agent}/`)) continue;
    for (const answer of answers.values()) if (answer.state === "arriving" && isAlive(answer, now)) return name;
  }
  return "";
}

const AgentRow = memo(function AgentRow({ activity, isChosen }: { activity: AgentActivity; isChosen: boolean }) {
  const { agent, waiting = 0 } = activity;
  const typing = useStore(() => typingIn(agent.name));
  const heardOf = useStore((state) => state.histories[activity.session ?? ""]?.heard ?? -1);
  // What was heard since is newer than what was asked.
  const state = typing ? "answering" : activity.state === "answering" && heardOf >= 0 ? "idle" : (activity.state ?? "idle");
  const where = (typing || activity.session || "").slice(agent.name.length + 1);
  return (
    <li>
      <a class={`row ${state}`} href={placeHash(agentPlace(agent.name))} aria-current={isChosen ? "true" : undefined}>
        <span class="dot" aria-hidden="true" />
        <span class="what">{agent.name}</span>
        <span class="when">{state === "idle" ? ago(agent.active) : ""}</span>
        {state !== "idle" && (
          <span class="doing">
            {texts.agentStates[state]} {where && `· ${where}`}
          </span>
        )}
        {waiting > 0 && <span class="doing">{texts.waiting(waiting)}</span>}
      </a>
    </li>
  );
});

/** An agent leads to its session that was used last. */
function agentPlace(agent: string) {
  const last = store.getState().sessions[agent]?.[0];
  return last ? { scope: "session" as const, session: last.name } : { scope: "agent" as const, agent };
}

function Sessions({ agent }: { agent: string }) {
  const sessions = useStore((state) => state.sessions[agent]);
  const next = useStore((state) => state.moreSessions[agent]);
  const place = useStore((state) => state.place);
  const session = place.session;
  const first = sessions?.[0]?.name;
  const list = useRef<HTMLUListElement>(null);
  useEffect(() => list.current?.querySelector("[aria-current]")?.scrollIntoView({ block: "nearest" }), [session, !sessions]);
  useEffect(() => {
    // An agent was chosen whose sessions were not known.
    if (first && place.scope === "agent" && !place.view) {
      location.replace(placeHash({ scope: "session", session: first }));
    }
  }, [first, place]);
  return (
    <section class="sessions" aria-labelledby="sessions-title">
      <h2 id="sessions-title">
        {texts.sessions} <span>{agent}</span>
      </h2>
      <NewSession agent={agent} />
      <ul ref={list}>
        {(sessions ?? []).map((each) => (
          <SessionRow key={each.name} session={each} isChosen={each.name === session} view={place.session ? place.view : ""} />
        ))}
        {session && sessions && !sessions.some((each) => each.name === session) && (
          <li>
            <a class="row" href={placeHash({ scope: "session", session })} aria-current="true">
              <span class="what">{session.slice(agent.length + 1)}</span>
            </a>
          </li>
        )}
      </ul>
      {next && (
        <button class="quiet wide" onClick={() => void sync.moreSessions(agent)}>
          {texts.more}
        </button>
      )}
    </section>
  );
}

const SessionRow = memo(function SessionRow(props: { session: SessionInfo; isChosen: boolean; view: string }) {
  const { session, isChosen, view } = props;
  const place = { scope: "session" as const, session: session.name, view: viewsOf("session")[0]?.name === view ? "" : view };
  return (
    <li>
      <a class="row" href={placeHash(place)} aria-current={isChosen ? "true" : undefined} title={exactly(session.active)}>
        <span class="what">{session.name.slice(session.agent.length + 1)}</span>
        <span class="when">{ago(session.active)}</span>
      </a>
    </li>
  );
});

function NewSession({ agent }: { agent: string }) {
  const [isOpen, setOpen] = useState(false);
  const field = useRef<HTMLInputElement>(null);
  useEffect(() => field.current?.focus(), [isOpen]);
  if (!isOpen) {
    return (
      <button class="quiet add" aria-label={texts.newSessionOf(agent)} title={texts.newSessionOf(agent)} onClick={() => setOpen(true)}>
        +
      </button>
    );
  }
  const create = (event: Event) => {
    event.preventDefault();
    setOpen(false);
    go({ scope: "session", session: `${agent}/${field.current!.value.trim()}` });
  };
  return (
    <form class="new-session" onSubmit={create}>
      <input ref={field} required pattern="\s*[^\s\/#][^\/#]*" title={texts.sessionNameHow} aria-label={texts.sessionName} placeholder={texts.sessionName} onKeyDown={(event) => event.key === "Escape" && setOpen(false)} />
      <button type="submit">{texts.create}</button>
    </form>
  );
}

function Foot() {
  const theme = useStore((state) => state.theme);
  const place = useStore((state) => state.place);
  const caller = useStore((state) => state.caller);
  return (
    <div class="foot">
      {viewsOf("bank").map((view) => (
        <a key={view.name} href={placeHash({ scope: "bank", view: view.name })} aria-current={place.scope === "bank" && place.view === view.name ? "page" : undefined}>
          {view.title}
        </a>
      ))}
      <span class="who">
        {caller?.name.replace(/^page of (.*) \w+$/, "$1")}
        <button class="quiet" onClick={nextTheme} aria-label={texts.themes[theme]} title={texts.themes[theme]}>
          {texts.themeLabel}
        </button>
        <button class="quiet" onClick={() => void sync.logOut()}>
          {texts.logOut}
        </button>
      </span>
    </div>
  );
}

// Above the view -----------------------------------------------------------------------------

function Header() {
  const place = useStore((state) => state.place);
  const last = useStore((state) => state.lastSession);
  const info = useStore((state) => state.sessions[place.agent]?.find((each) => each.name === place.session));
  const view = viewAt(place);
  // An agent's own views stand beside those of its session that was open last.
  const session = place.session || (last.startsWith(`${place.agent}/`) ? last : "");
  const tabs = place.scope === "bank" ? [] : [...(session ? viewsOf("session") : []), ...viewsOf("agent")];
  if (place.scope === "bank" && !view) return null;
  const name = place.session || place.agent || view?.title;
  return (
    <header class="header">
      <a class="back" href="#/" aria-label={texts.menu}>
        ‹
      </a>
      <h1 title={name}>{name}</h1>
      {info && (
        <span class="figures">
          {texts.extent(short(info.turns), short(info.tokens))}
        </span>
      )}
      {info && info.turns > 0 && <Exports session={info.name} />}
      {tabs.length > 1 && (
        <nav class="tabs" aria-label={texts.views}>
          {tabs.map((each) => {
            const to = each.scope === "session" ? { session } : { agent: place.agent };
            return (
              <a key={each.name} href={placeHash({ scope: each.scope, ...to, view: each.name })} aria-current={each === view ? "page" : undefined}>
                {each.title}
              </a>
            );
          })}
        </nav>
      )}
    </header>
  );
}

/** The whole session as a file. It may take long: nothing ends the request but the person. */
function Exports({ session }: { session: string }) {
  const save = (format: "markdown" | "jsonl", ending: string) => async () => {
    const given = { path: sessionPath(session), query: { format } };
    const answer = await sync.api.send("GET /api/v1/sessions/{agent}/{name}/export", given, new AbortController().signal);
    download(await answer.blob(), `${session.replace("/", "-")}.${ending}`);
  };
  return (
    <span class="exports">
      <Act class="quiet" label={texts.markdown} title={texts.exportMarkdown} work={save("markdown", "md")} />
      <Act class="quiet" label={texts.jsonl} title={texts.exportJsonl} work={save("jsonl", "jsonl")} />
    </span>
  );
}

// Keys ---------------------------------------------------------------------------------------

function shellKeys() {
  const step = (by: number, list: string[], now: string, to: (name: string) => void) => {
    const next = list[Math.min(Math.max(list.indexOf(now) + by, 0), list.length - 1)];
    if (next !== undefined && next !== now) to(next);
  };
  const agent = (by: number) => {
    const { agents, place } = store.getState();
    step(by, (agents ?? []).map((each) => each.agent.name), place.agent, (name) => go(agentPlace(name)));
  };
  const session = (by: number) => {
    const { sessions, place } = store.getState();
    const names = (sessions[place.agent] ?? []).map((each) => each.name);
    step(by, names, place.session, (name) => go({ scope: "session", session: name, view: place.view }));
  };
  return [
    { key: "?", says: texts.keys.help, run: () => store.setState({ layer: "keys" }) },
    { key: "/", says: texts.keys.search, run: () => store.setState({ layer: "search" }) },
    { key: "Escape", says: texts.keys.close, run: () => store.setState({ layer: "" }) },
    { key: "]", says: texts.keys.nextSession, run: () => session(1) },
    { key: "[", says: texts.keys.previousSession, run: () => session(-1) },
    { key: "}", says: texts.keys.nextAgent, run: () => agent(1) },
    { key: "{", says: texts.keys.previousAgent, run: () => agent(-1) },
    { key: "D", says: texts.keys.theme, run: nextTheme },
  ];
}

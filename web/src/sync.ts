// Keeps the store in step with the server: what the browser has is shown at once, the server is
// asked behind it, and what is new is merged.
//
// One socket hears everything. When it is open, agents and the session on screen are read; nothing
// is assumed of what was missed before.
import { Api, ApiError, sessionPath } from "./api.ts";
import type { LoginToken, Rendering, SessionInfo, Turn } from "./api_types.ts";
import { Database } from "./database.ts";
import {
  forget,
  hearAnswer,
  hearDelta,
  hearSession,
  hearTurn,
  mergeTurns,
  missingRuns,
  startHearing,
  turnToKeep,
} from "./history.ts";
import type { LiveEvent } from "./live_events.ts";
import { Outbox } from "./outbox.ts";
import { changeHistory, historyOf, listedAgent, store } from "./store.ts";

const TOKEN = "perdure-token";
const CALLER = "perdure-caller";
/** Turns of a first page; turns that are asked for at once. */
const PAGE = 30;
const RUN = 50;
/** Turns that are kept in memory around what is looked at. */
const MOST_TURNS = 3_000;
const AROUND = 10;
const SESSIONS = 100;
const RETRY_MS = [250, 500, 1_000, 2_000, 5_000];
const FLUSH_MS = 40;
/** So long behind the end of an answer its turn may come. */
const END_MS = 500;

export class Sync {
  readonly api = new Api();
  readonly outbox = new Outbox(this.api, (session) => this.refresh(session));
  private database: Database | null = null;
  private socket: WebSocket | null = null;
  private tries = 0;
  private retry = 0;
  private events: LiveEvent[] = [];
  private flushing = 0;
  private readonly changed = new Map<string, Set<number>>();
  private saving = 0;
  private readonly reading = new Map<string, Promise<void>>();
  private readonly asking = new Map<string, Promise<void>>();
  private readonly levels = new Map<string, Rendering>();
  /** Agents of which something was heard, and those whose kept sessions were compared. */
  private readonly touched = new Set<string>();
  private readonly checked = new Set<string>();
  private lookingAt: [number, number] = [0, 0];

  // Coming in --------------------------------------------------------------------------------

  /** Show what the browser has, log in if the address has a code, and connect. */
  async start(): Promise<void> {
    this.api.onRefused = () => this.leave();
    const code = new URLSearchParams(location.hash.slice(1)).get("code");
    if (code) {
      history.replaceState(null, "", location.pathname);
      try {
        const given: LoginToken = await this.api.call("POST /api/v1/login", { body: { code, keep: true } });
        localStorage.setItem(TOKEN, given.token);
      } catch (error) {
        if (!localStorage.getItem(TOKEN)) throw error;
      }
    }
    this.api.token = localStorage.getItem(TOKEN) ?? "";
    if (!this.api.token) {
      store.setState({ connection: "out" });
      return;
    }
    const kept = localStorage.getItem(CALLER);
    if (kept) {
      store.setState({ caller: JSON.parse(kept) });
      await this.openDatabase();
    }
    addEventListener("online", () => this.connectNow());
    document.addEventListener("visibilitychange", () => {
      if (document.visibilityState === "visible") this.connectNow();
      else void this.save();
    });
    addEventListener("pagehide", () => void this.save());
    void this.connect();
  }

  /** Log in with a token that somebody typed. Throws `ApiError`. */
  async logIn(token: string): Promise<void> {
    this.api.token = token.trim();
    const caller = await this.api.get("GET /api/v1/caller", {});
    localStorage.setItem(TOKEN, this.api.token);
    localStorage.setItem(CALLER, JSON.stringify(caller));
    location.reload();
  }

  /** Forget the token, and all that the browser keeps. */
  async logOut(): Promise<void> {
    localStorage.removeItem(TOKEN);
    localStorage.removeItem(CALLER);
    await Database.clear();
    location.reload();
  }

  private leave(): void {
    store.setState({ connection: "out" });
    this.socket?.close();
  }

  private async openDatabase(): Promise<void> {
    const caller = store.getState().caller;
    this.outbox.close();
    if (!caller) return;
    this.database = await Database.open(caller.agent ? `${caller.bank}-${caller.agent}` : caller.bank);
    const database = this.database;
    const [agents, sessions] = await Promise.all([
      database.value<never[]>("agents"),
      database.value<Record<string, SessionInfo[]>>("sessions"),
      this.outbox.open(database),
    ]);
    store.setState((state) => ({
      agents: state.agents ?? agents ?? null,
      sessions: { ...sessions, ...state.sessions },
    }));
  }

  // The socket -------------------------------------------------------------------------------

  private connectNow(): void {
    if (store.getState().connection === "away") {
      this.tries = 0;
      void this.connect();
    }
  }

  private async connect(): Promise<void> {
    clearTimeout(this.retry);
    try {
      const caller = await this.api.get("GET /api/v1/caller", {});
      const known = store.getState().caller;
      if (!known || known.bank !== caller.bank || known.agent !== caller.agent) {
        store.setState({ caller, agents: null, sessions: {}, histories: {}, queries: {} });
        await this.openDatabase();
      }
      localStorage.setItem(CALLER, JSON.stringify(caller));
      store.setState({ caller });
      const { ticket } = await this.api.call("POST /api/v1/tickets", {});
      this.socket?.close();
      const socket = new WebSocket(`${location.origin.replace(/^http/, "ws")}/api/v1/live?ticket=${ticket}`);
      this.socket = socket;
      socket.onopen = () => socket.send(JSON.stringify({ type: "subscribe", id: "all", all: true }));
      socket.onmessage = ({ data }) => this.hear(JSON.parse(data as string) as LiveEvent);
      socket.onclose = () => {
        if (this.socket === socket) this.lost();
      };
    } catch (error) {
      if (error instanceof ApiError && error.status === 401) return;
      this.lost();
    }
  }

  private lost(): void {
    if (store.getState().connection === "out") return;
    store.setState({ connection: "away" });
    clearTimeout(this.retry);
    this.retry = window.setTimeout(() => void this.connect(), RETRY_MS[Math.min(this.tries++, RETRY_MS.length - 1)]);
  }

  private onLive(): void {
    this.tries = 0;
    const { histories, place } = store.getState();
    const agent = listedAgent(store.getState());
    for (const name of Object.keys(histories)) {
      changeHistory(name, startHearing);
    }
    store.setState({ connection: "live" });
    void this.refreshAgents();
    if (agent) void this.refreshSessions(agent);
    if (place.session) void this.refresh(place.session);
    for (const { name, sending } of Object.values(histories)) {
      if (sending.some((each) => each.state === "sending")) void this.outbox.sendRest(name);
    }
  }

  private hear(event: LiveEvent): void {
    this.events.push(event);
    // Words of an answer come faster than anybody reads.
    this.flushing ||= window.setTimeout(() => this.flush(), event.type === "delta" ? FLUSH_MS : 0);
  }

  private flush(): void {
    this.flushing = 0;
    const events = this.events.splice(0);
    const heard = { ...store.getState().heard };
    const bySession = Map.groupBy(events, (event) => ("session" in event && event.session) || "");
    for (const [name, of] of bySession) {
      if (name && (store.getState().histories[name] || of.some((event) => event.type === "answer"))) {
        changeHistory(name, (history) => {
          for (const event of of) this.take(history, event);
        });
      }
      for (const event of of) {
        if (event.type === "live") this.onLive();
        if (event.type === "skipped" || event.type === "error") this.socket?.close(); // and read anew
        if (event.type === "turn" || event.type === "session" || event.type === "job") heard[event.type]++;
      }
    }
    const isNews = events.some((event) => ["turn", "session", "answer"].includes(event.type));
    store.setState({ heard });
    for (const name of bySession.keys()) if (name) this.touched.add(sessionPath(name).agent);
    if (isNews) this.soon("agents", () => this.refreshLists(), 700);
  }

  private take(history: ReturnType<typeof historyOf>, event: LiveEvent): void {
    const now = Date.now();
    let isComplete = true;
    if (event.type === "turn") {
      isComplete = hearTurn(history, event);
      if (isComplete) this.note(history.name, event.turn);
    } else if (event.type === "session") {
      isComplete = hearSession(history, event);
      if (!isComplete || event.gone) void this.database?.drop(history.name);
    } else if (event.type === "answer") {
      hearAnswer(history, event, now);
      if (event.state === "left") this.note(history.name, event.turn);
      if (event.state === "ended") this.soon(`end ${history.name} ${event.turn}`, () => this.readEnded(history.name, event.turn), END_MS);
    }
    else if (event.type === "delta") {
      if (!hearDelta(history, event, now)) this.socket?.close();
    } else if (event.type === "heartbeat") {
      const answer = history.answers.get(event.turn);
      if (answer) history.answers.set(event.turn, { ...answer, alive: now });
    }
    const { place } = store.getState();
    if (!isComplete && place.session === history.name) this.soon(history.name, () => this.readMissing(history.name));
  }

  private readonly waiting = new Map<string, number>();

  /** Once for all that happens in a moment. */
  private soon(name: string, work: () => Promise<void> | void, after = 60): void {
    if (this.waiting.has(name)) return;
    const timer = window.setTimeout(() => {
      this.waiting.delete(name);
      void work();
    }, after);
    this.waiting.set(name, timer);
  }

  private refreshLists(): void {
    void this.refreshAgents();
    const agent = listedAgent(store.getState());
    if (this.touched.delete(agent)) void this.refreshSessions(agent);
  }

  // Lists ------------------------------------------------------------------------------------

  async refreshAgents(): Promise<void> {
    await this.once("agents", async () => {
      const agents = await this.api.get("GET /api/v1/activity", {});
      store.setState({ agents });
      const names = new Set(agents.map((each) => each.agent.name));
      void this.database?.setValue("agents", agents);
      void this.database?.keepOnly((session) => names.has(sessionPath(session).agent));
    });
  }

  async refreshSessions(agent: string): Promise<void> {
    await this.once(`sessions of ${agent}`, async () => {
      const page = await this.api.get("GET /api/v1/sessions", { query: { agent, limit: SESSIONS } });
      const known = store.getState().sessions[agent] ?? [];
      const names = new Set(page.sessions.map((each) => each.name));
      // Those of further pages stay where they were.
      const rest = page.next ? known.slice(SESSIONS).filter((each) => !names.has(each.name)) : [];
      this.setSessions(agent, [...page.sessions, ...rest], page.next ?? null);
      if (!page.next && !this.checked.has(agent)) {
        this.checked.add(agent);
        const archived = await this.api.get("GET /api/v1/sessions", { query: { agent, archived: true, limit: 1_000 } });
        const all = new Set(archived.sessions.map((each) => each.name));
        if (!archived.next) void this.database?.keepOnly((name) => !name.startsWith(`${agent}/`) || all.has(name));
      }
    });
  }

  async moreSessions(agent: string): Promise<void> {
    const after = store.getState().moreSessions[agent];
    if (!after) return;
    await this.once(`more sessions of ${agent}`, async () => {
      const page = await this.api.get("GET /api/v1/sessions", { query: { agent, limit: SESSIONS, after } });
      const known = store.getState().sessions[agent] ?? [];
      const names = new Set(known.map((each) => each.name));
      this.setSessions(agent, [...known, ...page.sessions.filter((each) => !names.has(each.name))], page.next ?? null);
    });
  }

  private setSessions(agent: string, sessions: SessionInfo[], next: string | null): void {
    store.setState((state) => ({
      sessions: { ...state.sessions, [agent]: sessions },
      moreSessions: { ...state.moreSessions, [agent]: next },
    }));
    const { sessions: all } = store.getState();
    const kept = Object.fromEntries(Object.entries(all).map(([name, of]) => [name, of.slice(0, SESSIONS)]));
    void this.database?.setValue("sessions", kept);
  }

  // Turns ------------------------------------------------------------------------------------

  /** From the browser's database into memory. */
  private async load(name: string): Promise<void> {
    await this.once(`load ${name}`, async () => {
      const kept = await this.database?.history(name);
      const turns = kept ? await this.database!.turns(name, kept.newest, PAGE * 2) : [];
      changeHistory(name, (history) => {
        history.loaded = true;
        if (!kept) return;
        history.undone = history.fresh ? history.undone : kept.undone;
        history.forgets = history.fresh ? history.forgets : kept.forgets;
        history.through = Math.max(history.through, kept.through);
        history.newest = Math.max(history.newest, kept.newest);
        mergeTurns(history, turns, Date.now());
      });
    });
  }

  /** Show what the browser has, and ask the server what is new: from the last turn on that is known without a gap. */
  async refresh(name: string): Promise<void> {
    if (!historyOf(name).loaded) await this.load(name);
    const toldBefore = historyOf(name).told;
    await this.once(`refresh ${name}`, async () => {
      const path = sessionPath(name);
      const { through, forgets, told } = historyOf(name);
      const after = through > 1 ? `T-${through - 1}` : through ? 0 : undefined;
      try {
        const [head, page] = await Promise.all([
          this.api.get("GET /api/v1/sessions/{agent}/{name}/head", { path }),
          this.api.get("GET /api/v1/sessions/{agent}/{name}/turns", {
            path,
            query: { undone: true, limit: after === undefined ? PAGE : RUN, ...(after === undefined ? {} : { after }) },
          }),
        ]);
        if (historyOf(name).told !== told) return; // it is asked again below
        const isForgotten = (head.forgets ?? 0) !== forgets;
        changeHistory(name, (history) => {
          history.gone = false;
          history.undone = (head.undone ?? []) as [number, number][];
          if (isForgotten) forget(history, head.forgets ?? 0);
          history.forgets = head.forgets ?? 0;
          this.merge(history, page.turns ?? []);
          history.newest = Math.max(history.newest, page.newest);
          history.through = Math.max(history.through, page.turns?.at(-1)?.number ?? 0);
          history.fresh = true;
        });
        if (isForgotten) await this.database?.drop(name);
      } catch (error) {
        if (error instanceof ApiError && error.status === 404) {
          changeHistory(name, (history) => {
            history.gone = history.newest > 0;
            history.fresh = true;
          });
          void this.database?.drop(name);
        } else throw error;
      }
    });
    if (historyOf(name).told !== toldBefore) return this.refresh(name);
    const { through, newest } = historyOf(name);
    if (newest - through > 0) {
      // More was written than fits a page: the newest, and the rest when somebody looks at it.
      changeHistory(name, (history) => {
        history.through = 0;
      });
      await this.readRun(name, Math.max(through + 1, newest - PAGE + 1), newest);
      changeHistory(name, (history) => {
        history.through = history.turns.has(newest) ? newest : history.through;
      });
    }
    await this.readMissing(name);
  }

  /** These turns are on screen: read those that are not known, and some around them. */
  look(name: string, first: number, last: number): void {
    this.lookingAt = [first - AROUND, last + AROUND];
    this.soon(name, () => this.readMissing(name));
  }

  private async readMissing(name: string): Promise<void> {
    const [first, last] = this.lookingAt;
    const history = historyOf(name);
    for (const [from, to] of missingRuns(history, Math.max(first, 1), Math.min(last, history.newest)).slice(0, 4)) {
      await this.readRun(name, Math.max(from, to - RUN + 1), to);
    }
    this.evict(name);
  }

  private async readRun(name: string, first: number, last: number): Promise<void> {
    await this.once(`run ${name} ${first} ${last}`, async () => {
      const { forgets } = historyOf(name);
      const kept = (await this.database?.turns(name, last, last - first + 1)) ?? [];
      if (kept.length && historyOf(name).forgets === forgets) changeHistory(name, (history) => mergeTurns(history, kept, Date.now()));
      const page = await this.api.get("GET /api/v1/sessions/{agent}/{name}/turns", {
        path: sessionPath(name),
        query: { before: `T-${last + 1}`, limit: last - first + 1, undone: true },
      });
      if (historyOf(name).forgets !== forgets) return;
      changeHistory(name, (history) => {
        this.merge(history, page.turns ?? []);
        history.newest = Math.max(history.newest, page.newest);
        for (let number = first; number <= last; number++) history.needs.delete(number);
      });
    });
  }

  /** An answer has ended, and its turn did not come with it: the news was heard before it, or not at all. */
  private async readEnded(name: string, turn: number): Promise<void> {
    if (historyOf(name).answers.get(turn)?.state === "settling") await this.readRun(name, turn, turn);
  }

  private merge(history: ReturnType<typeof historyOf>, turns: Turn[]): void {
    mergeTurns(history, turns, Date.now());
    for (const turn of turns) this.note(history.name, turn.number);
  }

  /** Memory holds what is near to what is looked at. */
  private evict(name: string): void {
    const { turns } = historyOf(name);
    if (turns.size <= MOST_TURNS) return;
    const middle = (this.lookingAt[0] + this.lookingAt[1]) / 2;
    const far = [...turns.keys()].sort((one, other) => Math.abs(other - middle) - Math.abs(one - middle));
    for (const number of far.slice(0, turns.size - MOST_TURNS / 2)) turns.delete(number);
  }

  /** A turn (or all of it) at a level, as a model would be shown it. */
  async level(session: string, turn: number, level: "R" | "S" | "C" | "T"): Promise<Rendering> {
    const version = historyOf(session).turns.get(turn)?.version ?? 0;
    const key = `${session}#${turn}.${level}.${version}`;
    const known = this.levels.get(key);
    if (known) return known;
    const found = await this.api.get("GET /api/v1/sessions/{agent}/{name}/turns/{turn}/levels/{level}", {
      path: { ...sessionPath(session), turn: `T-${turn}`, level },
    });
    if (this.levels.size > 500) this.levels.clear();
    this.levels.set(key, found);
    return found;
  }

  knownLevel(session: string, turn: number, level: string): Rendering | undefined {
    return this.levels.get(`${session}#${turn}.${level}.${historyOf(session).turns.get(turn)?.version ?? 0}`);
  }

  // Keeping ----------------------------------------------------------------------------------

  private note(name: string, turn: number): void {
    const noted = this.changed.get(name) ?? new Set();
    this.changed.set(name, noted.add(turn));
    this.saving ||= window.setTimeout(() => void this.save(), 300);
  }

  private async save(): Promise<void> {
    clearTimeout(this.saving);
    this.saving = 0;
    const changed = [...this.changed];
    this.changed.clear();
    this.outbox.keep();
    for (const [name, numbers] of changed) {
      const history = historyOf(name);
      if (history.gone) continue;
      const { newest, through, undone, forgets } = history;
      const turns = [...numbers].flatMap((number) => turnToKeep(history, number) ?? []);
      await this.database?.save({ name, newest, through, undone, forgets, opened: Date.now() }, turns);
    }
  }

  /** Ask for something that a view shows; see `useQuery`. */
  async query(key: string, ask: (api: Api) => Promise<unknown>): Promise<void> {
    if (!store.getState().queries[key]) {
      const kept = await this.database?.value<{ data: unknown; at: number }>(`query ${key}`);
      if (kept && !store.getState().queries[key]) this.answered(key, { ...kept, error: "" });
    }
    await this.once(`query ${key}`, async () => {
      try {
        const data = await ask(this.api);
        this.answered(key, { data, at: Date.now(), error: "" });
        void this.database?.setValue(`query ${key}`, { data, at: Date.now() });
      } catch (error) {
        const known = store.getState().queries[key];
        const isAway = error instanceof ApiError && error.code === "offline";
        const said = isAway ? "" : error instanceof Error ? error.message : String(error);
        this.answered(key, { data: known?.data, at: known?.at ?? 0, error: said });
      }
    });
  }

  private answered(key: string, answer: { data: unknown; at: number; error: string }): void {
    store.setState((state) => ({ queries: { ...state.queries, [key]: answer } }));
  }

  /** One request of a kind at a time; whoever asks meanwhile waits for the same, and for one more
   * if that had begun. What fails because the server is away is asked again when it is back. */
  private async once(name: string, work: () => Promise<void>): Promise<void> {
    const running = this.asking.get(name);
    if (running) {
      const next = this.reading.get(name) ?? running.then(() => this.once(name, work));
      this.reading.set(name, next);
      await next;
      return;
    }
    const started = work()
      .catch((error: unknown) => {
        if (error instanceof ApiError || (error as Error).name === "AbortError") return;
        throw error;
      })
      .finally(() => {
        this.asking.delete(name);
        this.reading.delete(name);
      });
    this.asking.set(name, started);
    await started;
  }
}

export const sync = new Sync();

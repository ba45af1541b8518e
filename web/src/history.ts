// One session's turns as far as this page knows them, and how what arrives is merged. Pure: no I/O.
//
// Turns come from three sides: the browser's own database, the API, and live events, in any order.
// A turn's `version` is the newest piece of the log in it, so the greater one wins. A live event
// brings one piece; it is added to a turn only if no piece in between can have been missed, else
// the turn is noted in `needs`, and read by the API. Turns between two known ones that are not
// known are holes: they are read when somebody looks at them.
import type { Message, Round, Turn, ToolCall } from "./api_types.ts";
import type { AnswerEvent, DeltaEvent, SessionEvent, TurnEvent } from "./live_events.ts";

/** An answer that arrives, or has stopped arriving. */
export interface Answer {
  turn: number;
  message: Message;
  /** `settling`: it is complete, and comes with its turn in a moment. */
  state: "arriving" | "settling" | "left";
  /** A reply was written to the turn while it arrived: the end of it is no news. */
  isWritten?: boolean;
  /** When somebody last gave a sign of life, on this machine's clock. */
  alive: number;
}

/** A message of this page that is not in the bank yet, or whose being there is not known yet. */
export interface Sending {
  id: string;
  session: string;
  text: string;
  at: number;
  state: "sending" | "failed";
  error?: string;
  hint?: string;
}

export interface History {
  readonly name: string;
  /** Replaced with every change, so that views see it; the maps in it are changed in place. */
  readonly turns: Map<number, Turn>;
  readonly answers: Map<number, Answer>;
  /** Turns that have to be read, at least at this version. */
  readonly needs: Map<number, number>;
  newest: number;
  /** All turns from some earlier one up to this were read from the server, without a gap. */
  through: number;
  undone: [number, number][];
  forgets: number;
  /** How often it was heard that turns were undone or forgotten: what was asked before is void. */
  told: number;
  sending: Sending[];
  /** Why the model did not answer, by turn; of this page only. */
  readonly failures: Map<number, string>;
  /** The browser's database was read. */
  loaded: boolean;
  /** The server was asked since the live socket was opened. */
  fresh: boolean;
  gone: boolean;
  /** All pieces behind `heardFrom` up to `heard` were heard on this socket; -1: none. */
  heardFrom: number;
  heard: number;
}

/** A writer that gave no sign for so long has left, as the server counts. */
export const ALIVE_MS = 15_000;

export function emptyHistory(name: string): History {
  return {
    name,
    turns: new Map(),
    answers: new Map(),
    needs: new Map(),
    newest: 0,
    through: 0,
    undone: [],
    forgets: 0,
    told: 0,
    sending: [],
    failures: new Map(),
    loaded: false,
    fresh: false,
    gone: false,
    heardFrom: -1,
    heard: -1,
  };
}

export const versionOf = (turn: Turn): number => turn.version ?? 0;

/** Merge turns as the server or the browser's database has them. */
export function mergeTurns(history: History, turns: Turn[], now: number): void {
  for (const each of turns) {
    const { turn, draft } = splitDraft(each);
    const known = history.turns.get(turn.number);
    if (!known || versionOf(turn) >= versionOf(known)) {
      if (turn.rounds.length > 0 || turn.status !== "partial") history.turns.set(turn.number, turn);
      settle(history, turn);
    }
    if (draft) noteDraft(history, turn.number, draft, each.writer === "alive", now);
    else if (turn.status !== "partial" && history.answers.get(turn.number)?.state !== "arriving") {
      history.answers.delete(turn.number);
    }
    history.newest = Math.max(history.newest, turn.number);
    if ((history.needs.get(turn.number) ?? Infinity) <= versionOf(turn)) history.needs.delete(turn.number);
  }
}

/** The turn without the answer that arrives, which is its last message. */
function splitDraft(turn: Turn): { turn: Turn; draft: Message | null } {
  const round = turn.rounds.at(-1);
  const draft = round?.messages.at(-1);
  if (turn.status !== "partial" || !round || !draft || draft.role !== "assistant") return { turn, draft: null };
  const rest = round.messages.slice(0, -1);
  const rounds = turn.rounds.slice(0, -1);
  if (rest.length) rounds.push({ ...round, messages: rest });
  return { turn: { ...turn, rounds }, draft };
}

/** A turn as the browser keeps it: with what arrived of an answer that nobody goes on with. */
export function turnToKeep(history: History, number: number): Turn | undefined {
  const turn = history.turns.get(number);
  const answer = history.answers.get(number);
  if (!turn || answer?.state !== "left") return turn;
  const round = { number: (turn.rounds.at(-1)?.number ?? 0) + 1, messages: [answer.message], tokens: null };
  return { ...turn, status: "partial", rounds: [...turn.rounds, round] };
}

function noteDraft(history: History, turn: number, message: Message, isAlive: boolean, now: number): void {
  const known = history.answers.get(turn);
  if (known && known.state === "arriving" && sizeOf(known.message) >= sizeOf(message)) return;
  history.answers.set(turn, { turn, message, state: isAlive ? "arriving" : "left", alive: now });
}

const sizeOf = (message: Message): number =>
  (message.parts ?? []).reduce((sum, part) => sum + writtenOf(part).length + 1, 0);

/** A turn that one live event brought. Returns false if it has to be read by the API. */
export function hearTurn(history: History, event: TurnEvent): boolean {
  const inOrder = event.cursor === history.heard + 1;
  if (!inOrder) history.heardFrom = event.cursor - 1;
  const heardFrom = history.heardFrom;
  history.heard = Math.max(history.heard, event.cursor);
  const isNew = event.turn > history.newest || (event.turn === history.newest && history.answers.has(event.turn));
  history.newest = Math.max(history.newest, event.turn);
  const known = history.turns.get(event.turn);
  const version = known ? versionOf(known) : 0;
  if (known && event.cursor <= version) return true;
  const isWhole = known ? version > 0 && version >= heardFrom : isNew && history.fresh;
  if (!isWhole || event.omitted || event.forgotten) {
    history.needs.set(event.turn, event.cursor);
    return false;
  }
  const turn: Turn = {
    session: history.name,
    number: event.turn,
    rounds: addRounds(known?.rounds ?? [], event.rounds),
    status: event.undone ? "undone" : event.open ? "open" : "closed",
    started: known?.started ?? event.started,
    ended: event.ended,
    tags: event.tags ?? known?.tags ?? {},
    version: event.cursor,
  };
  history.turns.set(event.turn, turn);
  noteReply(history, event);
  if (history.through === event.turn - 1) history.through = event.turn;
  settle(history, turn);
  return true;
}

/** The reply that an answer became takes its place. The words of the next answer may be faster. */
function noteReply(history: History, event: TurnEvent): void {
  const answer = history.answers.get(event.turn);
  const replies = event.rounds.flatMap((round) => round.messages.filter((message) => message.role === "assistant"));
  if (!answer || !replies.length) return;
  const said = wordsOf(answer.message);
  if (answer.state === "settling" || replies.some((reply) => wordsOf(reply) === said)) history.answers.delete(event.turn);
  else history.answers.set(event.turn, { ...answer, isWritten: true });
}

const wordsOf = (message: Message): string => (message.parts ?? []).map(writtenOf).join("\n");

function addRounds(known: Round[], said: TurnEvent["rounds"]): Round[] {
  const rounds = [...known];
  for (const { number, messages } of said) {
    const at = rounds.findIndex((round) => round.number === number);
    const before = rounds[at];
    if (before) rounds[at] = { ...before, messages: [...before.messages, ...messages], tokens: null };
    else rounds.push({ number, messages, tokens: null });
  }
  return rounds;
}

/** Returns false if turns have to be read anew. */
export function hearSession(history: History, event: SessionEvent): boolean {
  if (event.gone) {
    history.gone = true;
    history.turns.clear();
    history.answers.clear();
    return true;
  }
  const forgot = (event.forgets ?? 0) !== history.forgets;
  if (forgot || String(event.undone ?? []) !== String(history.undone)) history.told++;
  history.undone = event.undone ?? [];
  if (event.closed) closeTurn(history, event.turn);
  if (forgot) forget(history, event.forgets ?? 0);
  return !forgot;
}

function closeTurn(history: History, number: number): void {
  const turn = history.turns.get(number);
  if (turn?.status === "open") history.turns.set(number, { ...turn, status: "closed" });
}

/** Turns were forgotten, nobody says which: what is known is void. */
export function forget(history: History, forgets: number): void {
  history.forgets = forgets;
  history.turns.clear();
  history.through = 0;
  history.fresh = false;
}

export function hearAnswer(history: History, event: AnswerEvent, now: number): void {
  const known = history.answers.get(event.turn);
  if (event.state === "arriving") {
    history.failures.delete(event.turn);
    const message = event.message ?? { role: "assistant" };
    history.answers.set(event.turn, { turn: event.turn, message, state: "arriving", alive: now });
    history.newest = Math.max(history.newest, event.turn);
  } else if (known?.isWritten && event.state === "ended") {
    history.answers.delete(event.turn);
  } else if (known) {
    const state = event.state === "left" ? "left" : "settling";
    history.answers.set(event.turn, { ...known, state });
  }
}

/** Returns false if something is missing in front of it. */
export function hearDelta(history: History, event: DeltaEvent, now: number): boolean {
  const known = history.answers.get(event.turn);
  if (!known || known.state !== "arriving") return !known;
  const parts = [...(known.message.parts ?? [])];
  const { part: number = 0, at = 0, text = "", of = "text" } = event;
  const before = parts[number];
  if ((!before && number > parts.length) || (before ? writtenOf(before).length : 0) < at) return false;
  const written = (before ? writtenOf(before).slice(0, at) : "") + text;
  if (of === "call") {
    const call = before?.kind === "call" ? before : null;
    parts[number] = {
      kind: "call",
      id: event.id ?? call?.id ?? "",
      name: event.name ?? call?.name ?? "",
      arguments: written,
    };
  } else {
    parts[number] = { kind: of === "reasoning" ? "reasoning" : "text", text: written };
  }
  const message = { ...known.message, parts };
  history.answers.set(event.turn, { ...known, message, alive: now });
  return true;
}

function writtenOf(part: NonNullable<Message["parts"]>[number]): string {
  if (part.kind === "text") return part.text;
  if (part.kind === "reasoning") return part.text ?? "";
  return part.kind === "call" ? ((part as ToolCall).arguments ?? "") : "";
}

/** The socket was opened anew: what still arrives is told again. */
export function startHearing(history: History): void {
  history.fresh = false;
  history.heard = history.heardFrom = -1;
  for (const [turn, answer] of history.answers) {
    if (answer.state === "arriving") history.answers.set(turn, { ...answer, state: "settling" });
  }
}

/** Whether somebody still writes it. */
export function isAlive(answer: Answer, now: number): boolean {
  return answer.state === "settling" || (answer.state === "arriving" && now - answer.alive < ALIVE_MS);
}

/** What this page sent and the turn holds is no longer under way. */
function settle(history: History, turn: Turn): void {
  if (!history.sending.length) return;
  const said = new Set(turn.rounds.flatMap((round) => round.messages.map((message) => message.id)));
  const left = history.sending.filter((each) => !said.has(each.id));
  if (left.length < history.sending.length) history.sending = left;
}

export function isUndone(history: History, turn: number): boolean {
  return history.undone.some(([first, last]) => first <= turn && turn <= last);
}

/** The runs of turns from `first` to `last` that have to be read, the newest first. */
export function missingRuns(history: History, first: number, last: number): [number, number][] {
  const runs: [number, number][] = [];
  for (let number = last; number >= first; number--) {
    const isKnown = history.turns.has(number) && !history.needs.has(number);
    const isDraft = !history.turns.has(number) && history.answers.has(number);
    if (isKnown || isDraft) continue;
    const run = runs.at(-1);
    if (run && run[0] === number + 1) run[0] = number;
    else runs.push([number, number]);
  }
  return runs;
}

// What the page shows, in memory: one zustand store. Views read it with `useStore`, `sync.ts` fills
// it. Nothing here asks the server.
import { useLayoutEffect, useReducer, useRef } from "preact/hooks";
import { createStore } from "zustand/vanilla";
import type { AgentActivity, CurrentCaller, SessionInfo } from "./api_types.ts";
import { emptyHistory, type History } from "./history.ts";
import { NOWHERE, type Place } from "./router.ts";

/** `starting`: nothing is known yet; `out`: nobody is logged in, or the token holds no more. */
export type Connection = "starting" | "live" | "away" | "out";

/** Something that the server answered, kept by a name: see `useQuery`. */
export interface Answered {
  data: unknown;
  at: number;
  error: string;
}

export interface PageState {
  connection: Connection;
  caller: CurrentCaller | null;
  place: Place;
  /** Which was open last: beside views of its agent and of the bank, one finds back to it. */
  lastSession: string;
  agents: AgentActivity[] | null;
  /** By agent, the most recently used first. */
  sessions: Record<string, SessionInfo[]>;
  /** Whether an agent has more sessions than are listed. */
  moreSessions: Record<string, string | null>;
  histories: Record<string, History>;
  queries: Record<string, Answered>;
  /** Counts live events by kind: queries that depend on them are asked again. */
  heard: Record<"turn" | "session" | "job", number>;
  theme: "" | "light" | "dark";
  loginError: string;
  /** Which layer lies above the page. */
  layer: "" | "keys" | "search";
}

export const store = createStore<PageState>(() => ({
  connection: "starting",
  caller: null,
  place: NOWHERE,
  lastSession: "",
  agents: null,
  sessions: {},
  moreSessions: {},
  histories: {},
  queries: {},
  heard: { turn: 0, session: 0, job: 0 },
  theme: "",
  loginError: "",
  layer: "",
}));

/** The agent whose sessions are listed. */
export const listedAgent = ({ place, lastSession }: PageState): string => place.agent || lastSession.split("/")[0]!;

/** The history of a session, empty if nothing is known of it. */
export const historyOf = (name: string): History => store.getState().histories[name] ?? emptyHistory(name);

/** Change a session's history, and let those see it who show it. */
export function changeHistory(name: string, change: (history: History) => void): void {
  const next = { ...historyOf(name) };
  change(next);
  store.setState((state) => ({ histories: { ...state.histories, [name]: next } }));
}

/** What `select` finds in the store; the component is rendered again when that is another thing. */
export function useStore<T>(select: (state: PageState) => T): T {
  const [, render] = useReducer((count: number) => count + 1, 0);
  const selected = select(store.getState());
  const latest = useRef({ select, selected });
  latest.current = { select, selected };
  useLayoutEffect(() => {
    const look = () => {
      const { select, selected } = latest.current;
      if (!Object.is(select(store.getState()), selected)) render(0);
    };
    look();
    return store.subscribe(look);
  }, []);
  return selected;
}

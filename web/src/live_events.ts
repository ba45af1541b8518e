// What /api/v1/live says: see docs/live.md. WebSockets are not part of OpenAPI, so this is by hand.
import type { Message } from "./api_types.ts";

export interface TurnEvent {
  type: "turn";
  session: string;
  cursor: number;
  turn: number;
  rounds: { number: number; messages: Message[] }[];
  open?: boolean;
  undone?: boolean;
  forgotten?: boolean;
  started: number;
  ended: number;
  tags?: Record<string, string>;
  omitted?: number;
}

export interface SessionEvent {
  type: "session";
  session: string;
  cursor: number;
  turn: number;
  closed?: boolean;
  undone?: [number, number][];
  forgets?: number;
  gone?: boolean;
}

export interface AnswerEvent {
  type: "answer";
  session: string;
  turn: number;
  state: "arriving" | "ended" | "left";
  message?: Message;
}

export interface DeltaEvent {
  type: "delta";
  session: string;
  turn: number;
  part?: number;
  of?: "text" | "reasoning" | "call" | "other";
  at?: number;
  text?: string;
  id?: string;
  name?: string;
}

export interface HeartbeatEvent {
  type: "heartbeat";
  session: string;
  turn: number;
}

export interface JobEvent {
  type: "job";
  id: string;
  kind: string;
  state: "pending" | "running" | "failed" | "done";
  attempts?: number;
  error?: string;
  session?: string;
}

export type LiveEvent =
  | TurnEvent
  | SessionEvent
  | AnswerEvent
  | DeltaEvent
  | HeartbeatEvent
  | JobEvent
  | { type: "subscribed" | "unsubscribed"; id: string }
  | { type: "live"; id: string; cursor: unknown }
  | { type: "skipped"; turns?: Record<string, unknown>; sessions?: number; answers?: number; jobs?: number }
  | { type: "error"; code: string; message: string; hint?: string; id?: string };

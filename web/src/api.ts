// The API, typed from the server's own description (src/api_types.ts is made by the build).
import * as texts from "./texts.ts";
import type { Operations } from "./api_types.ts";

type Name = keyof Operations;
type NameOf<M extends string> = Extract<Name, `${M} ${string}`>;
type Part<N extends Name, P extends "path" | "query" | "body"> = Operations[N][P];
/** What a call is given: only what the operation takes. */
export type Given<N extends Name> = (keyof Part<N, "path"> extends never ? object : { path: Part<N, "path"> }) & {
  query?: Part<N, "query">;
} & (Part<N, "body"> extends undefined ? object : { body: Part<N, "body"> });
export type Result<N extends Name> = Operations[N]["result"];

/** An error that the server told, or `offline` if it could not be reached. */
export class ApiError extends Error {
  readonly code: string;
  readonly status: number;
  readonly hint: string;
  constructor(code: string, message: string, hint = "", status = 0) {
    super(message);
    this.code = code;
    this.status = status;
    this.hint = hint;
  }
}

const LONGEST_MS = 60_000;

export class Api {
  token = "";
  /** Told of every 401: the token holds no more. */
  onRefused: () => void = () => {};

  get<N extends NameOf<"GET">>(name: N, given: Given<N>, signal?: AbortSignal): Promise<Result<N>> {
    return this.call(name, given, signal);
  }

  /** Any operation: `api.call("POST /api/v1/sessions", { body: { name } })`. */
  async call<N extends Name>(name: N, given: Given<N>, signal?: AbortSignal): Promise<Result<N>> {
    const response = await this.send(name, given, signal);
    if (response.status === 204) return undefined as Result<N>;
    const isJson = response.headers.get("content-type")?.startsWith("application/json");
    return (isJson ? await response.json() : await response.blob()) as Result<N>;
  }

  /** The same, for an answer that is read as it arrives. Throws `ApiError`. */
  async send<N extends Name>(name: N, given: Given<N>, signal?: AbortSignal): Promise<Response> {
    const [method = "GET", pattern = ""] = name.split(" ");
    const { path = {}, query = {}, body } = given as {
      path?: Record<string, string>;
      query?: Record<string, unknown>;
      body?: unknown;
    };
    const url = pattern.replace(/\{(\w+)\}/g, (_, field: string) => encodeURIComponent(path[field] ?? ""));
    const search = new URLSearchParams();
    for (const [field, value] of Object.entries(query)) {
      for (const each of Array.isArray(value) ? value : [value]) {
        if (each !== undefined && each !== null) search.append(field, String(each));
      }
    }
    const headers: Record<string, string> = { authorization: `Bearer ${this.token}` };
    if (body !== undefined) headers["content-type"] = "application/json";
    const asked = search.size ? `${url}?${search}` : url;
    return this.fetch(asked, {
      method,
      headers,
      body: body === undefined ? null : JSON.stringify(body),
      // A server that hangs is as good as one that is away; a stream may take its time.
      signal: signal ?? (pattern.endsWith("/chat") ? null : AbortSignal.timeout(LONGEST_MS)),
    });
  }

  private async fetch(url: string, init: RequestInit): Promise<Response> {
    let response: Response;
    try {
      response = await fetch(url, { ...init, cache: "no-store" });
    } catch (error) {
      if (init.signal?.aborted && (init.signal.reason as Error)?.name !== "TimeoutError") throw error;
      throw new ApiError("offline", texts.unreachable);
    }
    if (response.ok) return response;
    const told = (await response.json().catch(() => null)) as {
      error?: { code: string; message: string; hint?: string };
    } | null;
    if (response.status === 401) this.onRefused();
    const { code = "failed", message = `${response.status} ${response.statusText}`, hint = "" } = told?.error ?? {};
    throw new ApiError(code, message, hint, response.status);
  }
}

/** The two segments of a session's name. */
export function sessionPath(session: string): { agent: string; name: string } {
  const slash = session.indexOf("/");
  return { agent: session.slice(0, slash), name: session.slice(slash + 1) };
}

// Messages on their way. Each has an id of its own, is shown at once, kept in the browser until it is in
// the bank, and sent again after a break: the server writes it once. What went wrong is said at it.
import { type Api, ApiError, sessionPath } from "./api.ts";
import type { Database } from "./database.ts";
import type { Sending } from "./history.ts";
import { turnNumber } from "./router.ts";
import { changeHistory, historyOf, store } from "./store.ts";
import * as texts from "./texts.ts";

/** Each under a key of its own: another page in this browser has its own messages under way. */
const KEY = "sending ";

export class Outbox {
  private readonly api: Api;
  /** Reads what is new in a session: a message that is in the bank is settled. */
  private readonly refresh: (session: string) => Promise<void>;
  private database: Database | null = null;
  private readonly posting = new Set<string>();
  /** Messages as the browser keeps them. */
  private kept = new Map<string, Sending>();

  constructor(api: Api, refresh: (session: string) => Promise<void>) {
    this.api = api;
    this.refresh = refresh;
  }

  /** Another bank's messages are kept elsewhere. */
  close(): void {
    this.database = null;
    this.kept = new Map();
  }

  /** Take up what the browser has. */
  async open(database: Database): Promise<void> {
    this.database = database;
    for (const each of await database.values<Sending>(KEY)) {
      this.kept.set(each.id, each);
      changeHistory(each.session, (history) => {
        history.sending = [...history.sending, each];
      });
    }
  }

  /** Show a message at once, and have it answered. */
  send(session: string, text: string): void {
    const each: Sending = { id: newId(), session, text, at: Date.now(), state: "sending" };
    changeHistory(session, (history) => {
      history.sending = [...history.sending, each];
    });
    this.keep();
    void this.post(each);
  }

  sendAgain(each: Sending): void {
    this.settle(each, { state: "sending" });
    void this.post(each);
  }

  discard(each: Sending): void {
    changeHistory(each.session, (history) => {
      history.sending = history.sending.filter((other) => other.id !== each.id);
    });
    this.keep();
  }

  /** After a break: what did not reach the bank. */
  async sendRest(name: string): Promise<void> {
    await this.refresh(name);
    if (!historyOf(name).fresh) return;
    for (const each of historyOf(name).sending) if (each.state === "sending") await this.post(each);
  }

  /** Ask a turn's prompt again. What was answered so far is undone, and kept. */
  async answerAgain(session: string, turn: number): Promise<void> {
    changeHistory(session, (history) => void history.failures.delete(turn));
    try {
      const response = await this.api.send("POST /api/v1/sessions/{agent}/{name}/chat", {
        path: sessionPath(session),
        body: { trigger: "regenerate-message", messageId: `T-${turn}`, messages: [], goes_on: true },
      });
      await this.readAnswer(session, turn, response);
    } catch (error) {
      this.failed(session, turn, error instanceof Error ? error.message : String(error));
    }
  }

  /** End the answer that arrives; false: none of this server's. Throws `ApiError`. */
  async stop(session: string): Promise<boolean> {
    const { cancelled } = await this.api.call("DELETE /api/v1/sessions/{agent}/{name}/chat", { path: sessionPath(session) });
    return cancelled > 0;
  }

  private async post(each: Sending): Promise<void> {
    if (this.posting.has(each.id)) return;
    this.posting.add(each.id);
    try {
      const response = await this.api.send("POST /api/v1/sessions/{agent}/{name}/chat", {
        path: sessionPath(each.session),
        body: {
          messages: [{ id: each.id, role: "user", parts: [{ type: "text", text: each.text }] }],
          goes_on: true,
        },
      });
      await this.readAnswer(each.session, 0, response);
    } catch (error) {
      if (error instanceof ApiError && error.code === "offline") {
        // When the socket is back; if it never broke, in a moment.
        if (store.getState().connection === "live") setTimeout(() => void this.sendRest(each.session), 1_000);
        return;
      }
      const { message, hint } = error instanceof ApiError ? error : { message: String(error), hint: "" };
      this.settle(each, { state: "failed", error: message, hint });
    } finally {
      this.posting.delete(each.id);
    }
  }

  /** The words come on the socket, too; here it is heard that a model failed. */
  private async readAnswer(session: string, turn: number, response: Response): Promise<void> {
    const text = await response.text().catch(() => "");
    for (const line of text.split("\n")) {
      if (!line.startsWith('data: {"type":"start"') && !line.startsWith('data: {"type":"error"')) continue;
      const chunk = JSON.parse(line.slice(6)) as { type: string; errorText?: string; messageId?: string };
      if (chunk.type === "start") turn = turnNumber(chunk.messageId ?? "") || turn;
      if (chunk.type === "error") this.failed(session, turn, chunk.errorText ?? texts.failed);
    }
  }

  /** The prompt is in the bank, and its answer failed: said at that turn, which may be asked again. */
  private failed(session: string, turn: number, error: string): void {
    changeHistory(session, (history) => void history.failures.set(turn, error));
  }

  private settle(each: Sending, change: Partial<Sending>): void {
    changeHistory(each.session, (history) => {
      history.sending = history.sending.map((other) => (other.id === each.id ? { ...other, ...change } : other));
    });
    this.keep();
  }

  /** In the browser, what is under way. */
  keep(): void {
    const all = Object.values(store.getState().histories).flatMap((history) => history.sending);
    const now = new Map(all.map((each) => [each.id, each]));
    for (const [id, each] of now) if (this.kept.get(id) !== each) void this.database?.setValue(KEY + id, each);
    for (const id of this.kept.keys()) if (!now.has(id)) void this.database?.setValue(KEY + id, undefined);
    this.kept = now;
  }
}

/** Not `randomUUID`: browsers have that on encrypted pages only, and on this machine. */
const newId = (): string => `page-${[...crypto.getRandomValues(new Uint32Array(4))].map((part) => part.toString(36)).join("-")}`;

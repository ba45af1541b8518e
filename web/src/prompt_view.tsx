// A past prompt as it was sent, and what is different in another one.
import { useEffect, useMemo, useState } from "preact/hooks";
import { type Api, sessionPath } from "./api.ts";
import type { ExplainedContext } from "./api_types.ts";
import { whole } from "./format.ts";
import { promptParts, promptText } from "./prompt_text.ts";
import { sync } from "./sync.ts";
import { type Change, difference } from "./text_diff.ts";
import * as texts from "./texts.ts";
import { gradient as t } from "./texts.ts";
import { said } from "./views.ts";

export type Wire = "messages" | "chat" | "responses";
const WIRES: Wire[] = ["messages", "chat", "responses"];

/** A prompt never changes, but for what is forgotten of it: so it is kept while the page is open, and no longer. */
const known = new Map<string, ExplainedContext>();
const MOST_KNOWN = 12;

async function askPast(api: Api, session: string, turn: number, wire: Wire): Promise<ExplainedContext> {
  const key = `${session}#${turn} ${wire}`;
  const found =
    known.get(key) ??
    (await api.get("GET /api/v1/sessions/{agent}/{name}/turns/{turn}/context", {
      path: { ...sessionPath(session), turn: `T-${turn}` },
      query: { wire },
    }));
  known.delete(key);
  known.set(key, found);
  if (known.size > MOST_KNOWN) known.delete(known.keys().next().value!);
  return found;
}

export interface Past {
  data?: ExplainedContext;
  error?: string;
}

/** The prompt of a turn, as its session sent it; none for turn 0. */
export function usePast(session: string, turn: number, wire: Wire = "messages"): Past {
  const [past, setPast] = useState<Past & { key?: string }>({});
  const key = `${session}#${turn} ${wire}`;
  useEffect(() => {
    let isWanted = true;
    const show = (past: Past) => isWanted && setPast({ ...past, key });
    if (turn) {
      askPast(sync.api, session, turn, wire).then(
        (data) => show({ data }),
        (error: unknown) => show({ error: said(error) }),
      );
    }
    return () => {
      isWanted = false;
    };
  }, [key]);
  const data = known.get(key);
  if (past.key === key) return past;
  return data ? { data } : {};
}

export function PromptAsSent({ session, turn }: { session: string; turn: number }) {
  const [wire, setWire] = useState<Wire>("messages");
  const { data, error } = usePast(session, turn, wire);
  const parts = useMemo(() => (data?.body ? promptParts(data.body) : []), [data]);
  return (
    <section class="prompt-text">
      <h2>{t.asSent(turn)}</h2>
      <label class="about">
        {t.wire}{" "}
        <select value={wire} onChange={(event) => setWire(event.currentTarget.value as Wire)}>
          {WIRES.map((each) => (
            <option key={each} value={each}>
              {texts.wires[each]}
            </option>
          ))}
        </select>
      </label>
      {error && (
        <p class="error" role="alert">
          {error}
        </p>
      )}
      <div class="sent" tabIndex={0} role="region" aria-label={t.asSent(turn)}>
        {parts.map((each, at) => (
          <div key={at} class="said">
            <span class="role">{each.role}</span>
            <pre>{each.text}</pre>
          </div>
        ))}
      </div>
    </section>
  );
}

/** Lines around a change that are shown. */
const AROUND = 2;

export function PromptDifference({ session, turn, other }: { session: string; turn: number; other: number }) {
  const now = usePast(session, turn);
  const before = usePast(session, other);
  const changes = useMemo(
    () => (now.data?.body && before.data?.body ? difference(promptText(before.data.body), promptText(now.data.body)) : null),
    [now.data, before.data],
  );
  const error = now.error ?? before.error;
  const count = (kind: Change["kind"]) => whole((changes ?? []).reduce((sum, each) => sum + (each.kind === kind ? each.lines.length : 0), 0));
  return (
    <section class="prompt-text">
      <h2>{t.difference(other, turn)}</h2>
      {error && (
        <p class="error" role="alert">
          {error}
        </p>
      )}
      {changes && (
        <>
          <p class="about">{t.changed(count("new"), count("gone"), count("same"))}</p>
          <div class="sent difference" tabIndex={0} role="region" aria-label={t.difference(other, turn)}>
            {changes.map((each, at) => (
              <ChangedLines key={at} change={each} isFirst={at === 0} isLast={at === changes.length - 1} />
            ))}
          </div>
        </>
      )}
    </section>
  );
}

function ChangedLines({ change, isFirst, isLast }: { change: Change; isFirst: boolean; isLast: boolean }) {
  const { kind, lines } = change;
  if (kind === "new") return <ins>{lines.join("\n")}</ins>;
  if (kind === "gone") return <del>{lines.join("\n")}</del>;
  const head = isFirst ? 0 : AROUND;
  const tail = isLast ? 0 : AROUND;
  if (lines.length <= head + tail + 1) return <pre>{lines.join("\n")}</pre>;
  return (
    <>
      {head > 0 && <pre>{lines.slice(0, head).join("\n")}</pre>}
      <p class="about">{t.sameLines(whole(lines.length - head - tail))}</p>
      {tail > 0 && <pre>{lines.slice(-tail).join("\n")}</pre>}
    </>
  );
}

// The gradient: the window as a picture, its epochs, and past prompts as they were sent.
import "./gradient.css";
import { useState } from "preact/hooks";
import { type Api, sessionPath } from "../api.ts";
import type { Band, ExplainedContext } from "../api_types.ts";
import { EpochLine } from "../epoch_line.tsx";
import { whole } from "../format.ts";
import { GradientStrip } from "../gradient_strip.tsx";
import type { Level } from "../levels.ts";
import { PromptAsSent, PromptDifference, usePast } from "../prompt_view.tsx";
import { type Place, placeHash, turnHash, turnNumber } from "../router.ts";
import * as texts from "../texts.ts";
import { gradient as t } from "../texts.ts";
import { go, type PageView, said, sync, useQuery, useStore } from "../views.ts";

/** Stands for the next prompt, where a window can only be told for one. */
const ANY = "…";

/** The window of the next request; of a session without turns, none. */
async function askWindow(api: Api, session: string): Promise<ExplainedContext | null> {
  const path = sessionPath(session);
  const head = await api.get("GET /api/v1/sessions/{agent}/{name}/head", { path });
  const [turn = 0, , isFresh = true, waiting = [], isReplied, , isAnswered] = head.mark ?? [];
  if (!turn) return null;
  const isClosed = isFresh || (isReplied && !waiting.length && !isAnswered);
  const preview = (prompt: string | null) =>
    api.call("POST /api/v1/sessions/{agent}/{name}/context/preview", { path, body: { prompt, recall: false } });
  if (!isClosed) return preview(null);
  const found = await preview(ANY);
  return { ...found, blocks: found.blocks.filter((each) => each.kind !== "prompt" || each.name !== found.turn) };
}

function Gradient({ place }: { place: Place }) {
  const { session } = place;
  const turn = turnNumber(place.rest[0] ?? "");
  const other = turnNumber(place.rest[1] ?? "");
  const mayWrite = useStore((state) => state.caller?.scopes.some((each) => each === "write" || each === "admin") ?? false);
  const next = useQuery(`window ${session}`, (api) => askWindow(api, session), ["turn"]);
  const epochs = useQuery(
    `epochs ${session}`,
    (api) => api.get("GET /api/v1/sessions/{agent}/{name}/epochs", { path: sessionPath(session) }),
    ["turn"],
  );
  const past = usePast(session, turn);
  const [told, setTold] = useState("");
  const [error, setError] = useState("");
  const [waits, setWaits] = useState(false);
  const shown = turn ? past.data : next.data;
  const change = (number: number, level: Level) => {
    setError("");
    sendLevel(session, number, level, !waits).then(
      (text) => {
        setTold(text);
        next.refresh();
      },
      (failure: unknown) => setError(said(failure)),
    );
  };
  return (
    <div class="gradient" key={session}>
      <Choice session={session} turn={turn} other={other} />
      {(turn ? past.error : next.error) && (
        <p class="error" role="alert">
          {turn ? past.error : next.error}
        </p>
      )}
      {shown === null && <p class="nothing">{texts.turns.empty}</p>}
      {shown && (
        <>
          <p class="figures">
            {t.figures(whole(shown.tokens), whole(shown.budget), whole(shown.raw))}
            {shown.raw > shown.tokens && ` (${(shown.raw / Math.max(shown.tokens, 1)).toFixed(1)} : 1)`}
          </p>
          <GradientStrip key={turn} session={session} blocks={shown.blocks} budget={shown.budget} onLevel={!turn && mayWrite ? change : undefined} />
          {!turn && mayWrite && (
            <p class="wish">
              <label>
                <input type="checkbox" checked={waits} onChange={(event) => setWaits(event.currentTarget.checked)} /> {t.waits}
              </label>
              <span role="status">{told}</span>
              {error && (
                <span class="error" role="alert">
                  {error}
                </span>
              )}
            </p>
          )}
          <Bands session={session} bands={shown.bands} />
        </>
      )}
      {epochs.data && <EpochLine session={session} epochs={epochs.data} />}
      {turn > 0 && other > 0 && <PromptDifference session={session} turn={turn} other={other} />}
      {turn > 0 && <PromptAsSent session={session} turn={turn} />}
    </div>
  );
}

async function sendLevel(session: string, turn: number, level: Level, now: boolean): Promise<string> {
  const { text } = await sync.api.call("POST /api/v1/sessions/{agent}/{name}/turns/{turn}/fidelity", {
    path: { ...sessionPath(session), turn: `T-${turn}` },
    body: { level, now },
  });
  return text;
}

/** Which window is shown: that of the next prompt, or one that was sent. */
function Choice({ session, turn, other }: { session: string; turn: number; other: number }) {
  const show = (event: Event) => {
    event.preventDefault();
    const fields = new FormData(event.target as HTMLFormElement);
    const rest = ["turn", "other"].map((name) => turnNumber(String(fields.get(name)))).filter(Boolean);
    go({ scope: "session", session, view: "gradient", rest: rest.map((each) => `T-${each}`) });
  };
  return (
    <form class="choice" onSubmit={show} key={`${turn} ${other}`}>
      <a href={placeHash({ scope: "session", session, view: "gradient" })} aria-current={turn ? undefined : "page"}>
        {t.next}
      </a>
      <label>
        {t.past} <input name="turn" inputMode="numeric" placeholder="T-12" defaultValue={turn ? `T-${turn}` : ""} size={7} />
      </label>
      <label>
        {t.compared} <input name="other" inputMode="numeric" placeholder="T-11" defaultValue={other ? `T-${other}` : ""} size={7} />
      </label>
      <button type="submit">{t.show}</button>
    </form>
  );
}

function Bands({ session, bands }: { session: string; bands: Band[] }) {
  const turnLink = (name: string) => <a href={turnHash(session, turnNumber(name))}>{name}</a>;
  return (
    <div class="table" tabIndex={0} role="region" aria-label={t.bands}>
      <table>
        <thead>
          <tr>
            <th>{t.level}</th>
            <th>{t.from}</th>
            <th>{t.to}</th>
            <th class="number">{t.tokens}</th>
            <th class="number">{t.raw}</th>
          </tr>
        </thead>
        <tbody>
          {bands.map((each) => (
            <tr key={each.first}>
              <td>
                <span class={`swatch level-${each.level}`} aria-hidden="true" /> {texts.levelNames[each.level]}
              </td>
              <td>{turnLink(each.first)}</td>
              <td>{turnLink(each.last)}</td>
              <td class="number">{whole(each.tokens)}</td>
              <td class="number">{whole(each.raw)}</td>
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

export default { name: "gradient", title: t.title, scope: "session", order: 10, View: Gradient } satisfies PageView;

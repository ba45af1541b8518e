// Recall explained: ask, and see what was found, why, in which step; and what was put beside which
// prompt, and what the model did with it.
import "./recall.css";
import { useEffect, useState } from "preact/hooks";
import { sessionPath } from "../api.ts";
import type { Hit, InjectedItem, InjectedPrompt, InjectionPage, Recalled } from "../api_types.ts";
import { Fold } from "../fold.tsx";
import { exactly, when, whole } from "../format.ts";
import { memoryHash } from "../memory_parts.tsx";
import { type Place, placeHash, turnHash, turnNumber } from "../router.ts";
import * as texts from "../texts.ts";
import { recall as t } from "../texts.ts";
import { go, type PageView, said, sync, useQuery } from "../views.ts";

const PAGE = 30;

interface Options {
  kinds: string;
  wide: boolean;
  judged: boolean;
}

interface Asked {
  query: string;
  found?: Recalled;
  error?: string;
}

/** What was asked last in each session: kept while the page is open. */
const answers = new Map<string, Asked>();

function Recall({ place }: { place: Place }) {
  const { session } = place;
  const query = place.rest[0] ?? "";
  const [options, setOptions] = useState<Options>({ kinds: "", wide: false, judged: false });
  const [asked, setAsked] = useState<Asked | undefined>(answers.get(session));
  const ask = (query: string) => {
    const show = (answer: Asked) => {
      answers.set(session, answer);
      setAsked(answer);
    };
    sync.api
      .call("POST /api/v1/sessions/{agent}/{name}/recall", {
        path: sessionPath(session),
        body: { query, kinds: options.kinds || null, wide: options.wide, judged: options.judged },
      })
      .then(
        (found) => show({ query, found }),
        (error: unknown) => show({ query, error: said(error) }),
      );
  };
  useEffect(() => {
    if (query && asked?.query !== query) ask(query);
  }, [query]);
  return (
    <div class="recall">
      <AskForm
        query={query}
        options={options}
        onOptions={setOptions}
        onAsk={(words) => {
          if (words === query) ask(words);
          else go({ scope: "session", session, view: "recall", rest: [words] });
        }}
      />
      {asked?.error && (
        <p class="error" role="alert">
          {asked.error}
        </p>
      )}
      {query && asked?.found && <Answer session={session} found={asked.found} />}
      <Beside session={session} />
    </div>
  );
}

function AskForm(props: { query: string; options: Options; onOptions: (options: Options) => void; onAsk: (query: string) => void }) {
  const { query, options, onOptions, onAsk } = props;
  const ask = (event: Event) => {
    event.preventDefault();
    const words = String(new FormData(event.target as HTMLFormElement).get("query")).trim();
    if (words) onAsk(words);
  };
  return (
    <form class="ask" role="search" onSubmit={ask} key={query}>
      <input name="query" type="search" aria-label={t.ask} placeholder={t.placeholder} defaultValue={query} />
      <button type="submit">{t.send}</button>
      <select aria-label={t.kind} value={options.kinds} onChange={(event) => onOptions({ ...options, kinds: event.currentTarget.value })}>
        {Object.entries(texts.hitKinds).map(([kind, title]) => (
          <option key={kind} value={kind}>
            {title}
          </option>
        ))}
      </select>
      <label>
        <input type="checkbox" checked={options.wide} onChange={(event) => onOptions({ ...options, wide: event.currentTarget.checked })} /> {t.wide}
      </label>
      <label title={t.judgedHint}>
        <input type="checkbox" checked={options.judged} onChange={(event) => onOptions({ ...options, judged: event.currentTarget.checked })} /> {t.judged}
      </label>
    </form>
  );
}

const milliseconds = (took: number): string => `${took < 10 ? took.toFixed(1) : whole(Math.round(took))} ms`;

function Answer({ session, found }: { session: string; found: Recalled }) {
  const { hits = [], steps = [], notes = [], stage = "none", took_ms = 0 } = found;
  return (
    <section aria-label={t.hits}>
      <p class="figures" role="status">
        {hits.length ? t.reached(texts.recallStages[stage], milliseconds(took_ms), hits.length) : t.none}
      </p>
      {notes.map((note) => (
        <p key={note} class="about">
          {note}
        </p>
      ))}
      <Steps steps={steps} took={took_ms} />
      <ol class="found">
        {hits.map((hit) => (
          <Found key={hit.key} session={session} hit={hit} />
        ))}
      </ol>
    </section>
  );
}

/** When each step began and ended, one below the other. */
function Steps({ steps, took }: { steps: NonNullable<Recalled["steps"]>; took: number }) {
  const all = Math.max(took, steps.reduce((sum, each) => sum + each.took_ms, 0), 0.001);
  let begun = 0;
  return (
    <table class="steps">
      <caption class="about">{t.steps}</caption>
      <tbody>
        {steps.map((each, at) => {
          const x = (begun / all) * 100;
          begun += each.took_ms;
          return (
            <tr key={at}>
              <th scope="row">{texts.recallSteps[each.name] ?? each.name}</th>
              <td class="lasted">
                <svg width="100%" height="12" aria-hidden="true">
                  <rect x={`${x}%`} y="1" height="10" rx="1" width={`${Math.max((each.took_ms / all) * 100, 0.4)}%`} class={each.failed ? "failed" : ""} />
                </svg>
              </td>
              <td class="number">{milliseconds(each.took_ms)}</td>
              <td class={each.failed ? "error" : "about"}>{each.failed ? t.failed(each.failed) : t.left(each.left ?? 0)}</td>
            </tr>
          );
        })}
      </tbody>
    </table>
  );
}

/** Where a key leads: `T-12.3`, `other/session#T-12.3`; `M-7`, `other/M-7`; else it names a layer. */
function keyHash(session: string, key: string): string {
  const hash = key.lastIndexOf("#");
  const turn = turnNumber(key.slice(hash + 1));
  if (turn) return turnHash(hash > 0 ? key.slice(0, hash) : session, turn);
  if (/(^|\/)M-\d+$/.test(key)) return memoryHash(key.includes("/") ? key : `${sessionPath(session).agent}/${key}`);
  return placeHash({ scope: "bank", view: "references", rest: [key] });
}

const KeyLink = ({ session, of }: { session: string; of: string }) => (
  <a class="key" href={keyHash(session, of)}>
    {of}
  </a>
);

function Found({ session, hit }: { session: string; hit: Hit }) {
  const score = Math.round(Math.min(Math.max(hit.score, 0), 1) * 100);
  return (
    <li>
      <div class="top">
        <svg class="score" width="44" height="8" role="img" aria-label={t.score(`${score} %`)}>
          <rect class="all" width="44" height="8" rx="2" />
          <rect width={(44 * score) / 100} height="8" rx="2" />
        </svg>
        <span class="number">{hit.score.toFixed(2)}</span>
        <KeyLink session={session} of={hit.key} />
        <span class="about">
          {[
            hit.kind === "turn" ? "" : texts.hitKinds[hit.kind],
            when(hit.time),
            `${hit.level}, ${texts.turns.tokens(whole(hit.tokens ?? 0))}`,
            hit.full === false ? t.reminder : "",
            hit.neighbour ? t.neighbour : "",
          ]
            .filter(Boolean)
            .join(" · ")}
        </span>
      </div>
      <p class="why">{hit.why}</p>
      <Fold label={<span class="line">{hit.text.slice(0, 200)}</span>}>{() => <pre tabIndex={0}>{hit.text}</pre>}</Fold>
    </li>
  );
}

// Beside the prompts ------------------------------------------------------------------------

function Beside({ session }: { session: string }) {
  const [older, setOlder] = useState<InjectionPage[]>([]);
  const [error, setError] = useState("");
  const askPage = (before: string | null) =>
    sync.api.get("GET /api/v1/sessions/{agent}/{name}/injections", { path: sessionPath(session), query: { limit: PAGE, before } });
  const newest = useQuery(`injections ${session}`, () => askPage(null), ["turn"]);
  const pages = newest.data ? [newest.data, ...older] : [];
  const seen = new Set<string>();
  const all = pages.flatMap((page) => page.injections).filter((each) => !seen.has(each.turn) && seen.add(each.turn));
  const next = pages.at(-1)?.before;
  const more = () => {
    if (next) {
      askPage(next).then(
        (page) => setOlder((pages) => [...pages, page]),
        (failure: unknown) => setError(said(failure)),
      );
    }
  };
  const failure = error || newest.error;
  return (
    <section class="beside" aria-labelledby="beside-title">
      <h2 id="beside-title">{t.beside}</h2>
      {failure && (
        <p class="error" role="alert">
          {failure}
        </p>
      )}
      {newest.data && <p class="about">{all.length ? t.besideHow : t.nothingBeside}</p>}
      <ol>
        {all.map((each) => (
          <Injected key={each.turn} session={session} of={each} />
        ))}
      </ol>
      {next && (
        <button class="quiet" onClick={more}>
          {t.older}
        </button>
      )}
    </section>
  );
}

function Injected({ session, of }: { session: string; of: InjectedPrompt }) {
  const { turn, items, calls = [] } = of;
  const full = items.filter((each) => each.full);
  const reminders = items.filter((each) => !each.full);
  const named = items.filter((each) => each.named).length;
  const label = (
    <>
      <span class="key">{turn}</span>
      <span class="line">{of.prompt}</span>
      <span class="about" title={exactly(of.time)}>
        {[
          ...t.counts(full.length, reminders.length, named),
          texts.turns.tokens(whole(of.tokens)),
          ...(calls.length ? [`${t.called} ${calls.length}×`] : []),
        ].join(" · ")}
      </span>
    </>
  );
  return (
    <li>
      <Fold label={label}>
        {() => (
          <>
            <p class="about">
              <a href={turnHash(session, turnNumber(turn))}>{t.turn(turn)}</a> · <a href={placeHash({ scope: "session", session, view: "gradient", rest: [turn] })}>{t.promptOf(turn)}</a>
            </p>
            <Keys session={session} title={t.inFull} items={full} />
            <Keys session={session} title={t.reminders} items={reminders} />
            {calls.length ? (
              <ul class="calls" aria-label={t.called}>
                {calls.map((each, at) => (
                  <li key={at}>
                    <span class="about">{each.place}</span> <code>{each.tool}</code> <code class="given">{each.arguments}</code>
                  </li>
                ))}
              </ul>
            ) : (
              <p class="about">{t.noCalls}</p>
            )}
            <Fold label={t.text}>{() => <pre tabIndex={0}>{of.text}</pre>}</Fold>
          </>
        )}
      </Fold>
    </li>
  );
}

function Keys({ session, title, items }: { session: string; title: string; items: InjectedItem[] }) {
  if (!items.length) return null;
  return (
    <p class="keys-of">
      <span class="about">{title}</span>
      {items.map((each) => (
        <span key={each.key} class={each.named ? "item named" : "item"} title={each.named ? t.named : undefined}>
          <KeyLink session={session} of={each.key} />
          {each.named && "*"}
        </span>
      ))}
    </p>
  );
}

export default { name: "recall", title: t.title, scope: "session", order: 20, View: Recall } satisfies PageView;

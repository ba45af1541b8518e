// The turns of a session as they are said.
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { sessionPath } from "../api.ts";
import type { Rendering } from "../api_types.ts";
import { Guard } from "../guard.tsx";
import { isUndone, type Sending } from "../history.ts";
import { addKeys } from "../keys.ts";
import { type Level, LEVELS } from "../levels.ts";
import { Markdown } from "../markdown_view.tsx";
import { type Place, turnHash, turnNumber } from "../router.ts";
import { useStore } from "../store.ts";
import { sync } from "../sync.ts";
import * as texts from "../texts.ts";
import { type ListHandle, newStand, type Stand, TurnList } from "../turn_list.tsx";
import { TurnView } from "../turn_view.tsx";
import type { PageView } from "../views.ts";

/** Of a level that could not be read. */
const MISSING = { text: "", tokens: 0 } as Rendering;
/** Where each session's list was left. */
const stands = new Map<string, Stand>();

/** A reload finds the list where it stood: what is on screen is noted when the page is left. */
const LEFT = "perdure-stand";
const [entry] = performance.getEntriesByType("navigation") as PerformanceNavigationTiming[];
let left = entry?.type === "reload" ? (JSON.parse(sessionStorage.getItem(LEFT) ?? "null") as Stand["anchor"] | null) : null;
let onScreen: Stand | null = null;
addEventListener("pagehide", () => sessionStorage.setItem(LEFT, JSON.stringify(onScreen?.isAtEnd ? null : (onScreen?.anchor ?? null))));
addEventListener("hashchange", () => {
  left = null;
});

function Turns({ place }: { place: Place }) {
  const { session } = place;
  const history = useStore((state) => state.histories[session]);
  const target = turnNumber(place.rest[0] ?? "");
  const [chosen, setChosen] = useState(target);
  const [levels, setLevels] = useState<Record<number, Level>>({});
  const [, setLoaded] = useState(0);
  const [failed, setFailed] = useState(0);
  const list = useRef<ListHandle | null>(null);
  const stand = useMemo(() => {
    const found = stands.get(session) ?? (left ? { ...newStand(), anchor: left, isAtEnd: false } : newStand());
    stands.set(session, found);
    return found;
  }, [session]);
  const [isAtEnd, setAtEnd] = useState(stand.isAtEnd);
  const newest = history?.newest ?? 0;
  const now = useRef({ chosen, newest });
  now.current = { chosen, newest };

  useEffect(() => {
    if (!target || !newest) return;
    setChosen(target);
    if (left) return;
    list.current?.show(Math.min(target, newest) - 1, true);
  }, [target, newest > 0]);

  useEffect(() => {
    onScreen = stand;
    return () => {
      onScreen = null;
    };
  }, [stand]);

  const setLevel = (number: number, level: Level) => {
    setLevels((all) => ({ ...all, [number]: level }));
    setFailed(0);
    if (level !== "R") sync.level(session, number, level).then(() => setLoaded((count) => count + 1), () => setFailed(number));
  };
  const onLevel = useRef(setLevel);
  onLevel.current = setLevel;
  const stable = useMemo(
    () => ({ onLevel: (number: number, level: Level) => onLevel.current(number, level), onChoose: setChosen }),
    [],
  );

  useEffect(() => {
    const choose = (number: number) => {
      setChosen(number);
      list.current?.show(number - 1);
    };
    const step = (by: number) => {
      const { chosen, newest } = now.current;
      const [first = 0, last = 0] = list.current?.seen() ?? [];
      const from = chosen >= first + 1 && chosen <= last + 1 ? chosen : by > 0 ? first : last + 2;
      choose(Math.min(Math.max(from + by, 1), newest));
    };
    const element = () => document.querySelector(`[data-turn="${now.current.chosen}"]`);
    return addKeys([
      { key: "j", says: texts.keys.nextTurn, run: () => step(1) },
      { key: "k", says: texts.keys.previousTurn, run: () => step(-1) },
      { key: "g", says: texts.keys.first, run: () => choose(1) },
      {
        key: "G",
        says: texts.keys.last,
        run: () => {
          setChosen(now.current.newest);
          list.current?.end();
        },
      },
      ...LEVELS.map((level) => ({
        key: level.toLowerCase(),
        says: `${texts.keys.level(level)}: ${texts.levelNames[level]}`,
        run: () => now.current.chosen && stable.onLevel(now.current.chosen, level),
      })),
      {
        key: "o",
        says: texts.keys.fold,
        run: () => {
          const folds = [...(element()?.querySelectorAll("details") ?? [])];
          const isAnyOpen = folds.some((each) => each.open);
          for (const each of folds) each.open = !isAnyOpen;
        },
      },
      {
        key: "y",
        says: texts.keys.copyLink,
        run: () =>
          now.current.chosen &&
          void navigator.clipboard?.writeText(`${location.origin}/${turnHash(session, now.current.chosen)}`),
      },
      { key: "x", says: texts.keys.stop, run: () => document.querySelector<HTMLElement>(".stop")?.click() },
      { key: "m", says: texts.keys.write, run: () => document.getElementById("message")?.focus() },
    ]);
  }, [session]);

  if (history?.gone) return <p class="nothing">{texts.gone}</p>;
  const item = (at: number) => {
    const number = at + 1;
    const level = levels[number] ?? "R";
    return (
      <Guard>
        <TurnView
          session={session}
          number={number}
          turn={history?.turns.get(number)}
          answer={history?.answers.get(number)}
          failure={history?.failures.get(number)}
          isUndone={history !== undefined && isUndone(history, number)}
          isChosen={number === chosen}
          isNewest={number === newest}
          level={level}
          rendering={level === "R" ? undefined : (sync.knownLevel(session, number, level) ?? (failed === number ? MISSING : undefined))}
          {...stable}
        />
      </Guard>
    );
  };
  return (
    <div class="turns">
      <TurnList
        key={session}
        stand={stand}
        count={newest}
        label={texts.turns.history}
        item={item}
        tail={<Tail sending={history?.sending ?? []} isEmpty={history?.fresh === true && newest === 0} />}
        onLook={(first, last) => sync.look(session, first + 1, last + 1)}
        onEnd={setAtEnd}
        handle={(handle) => {
          list.current = handle;
        }}
      />
      {!isAtEnd && newest > 0 && (
        <button class="to-end" onClick={() => list.current?.end()}>
          ↓ {texts.turns.newest}
        </button>
      )}
      <Composer session={session} onSent={() => list.current?.end()} />
    </div>
  );
}

/** Behind the turns: what this page sent, and is not in one yet. */
function Tail({ sending, isEmpty }: { sending: Sending[]; isEmpty: boolean }) {
  const isAway = useStore((state) => state.connection !== "live");
  return (
    <>
      {isEmpty && !sending.length && <p class="nothing">{texts.turns.empty}</p>}
      {sending.map((each) => (
        <div key={each.id} class="turn pending">
          <div class="prompt">
            <Markdown text={each.text} />
          </div>
          {each.state === "sending" ? (
            <p class="about">{isAway ? texts.turns.waits : texts.turns.sending}</p>
          ) : (
            <p class="error" role="alert">
              {texts.turns.notSent} {each.error} {each.hint}
              <button class="quiet" onClick={() => sync.outbox.sendAgain(each)}>
                {texts.turns.again}
              </button>
              <button class="quiet" onClick={() => sync.outbox.discard(each)}>
                {texts.turns.discard}
              </button>
            </p>
          )}
        </div>
      ))}
    </>
  );
}

const drafts = new Map<string, string>();

function Composer({ session, onSent }: { session: string; onSent: () => void }) {
  const field = useRef<HTMLTextAreaElement>(null);
  const mayWrite = useStore((state) => {
    const scopes = state.caller?.scopes ?? [];
    return scopes.includes("write") || scopes.includes("admin");
  });
  if (!mayWrite) return null;
  const send = () => {
    const text = field.current?.value.trim();
    if (!text) return;
    field.current!.value = "";
    drafts.delete(session);
    fit();
    sync.outbox.send(session, text);
    onSent();
  };
  const fit = () => {
    const area = field.current!;
    area.style.height = "auto";
    area.style.height = `${Math.min(area.scrollHeight + 2, 240)}px`;
    drafts.set(session, area.value);
  };
  return (
    <form
      class="composer"
      onSubmit={(event) => {
        event.preventDefault();
        send();
      }}
    >
      <textarea
        id="message"
        ref={field}
        rows={1}
        aria-label={texts.turns.write}
        placeholder={texts.turns.placeholder}
        title={texts.turns.how}
        defaultValue={drafts.get(session) ?? ""}
        onInput={fit}
        onKeyDown={(event) => {
          if (event.key === "Enter" && !event.shiftKey && !event.isComposing) {
            event.preventDefault();
            send();
          }
        }}
      />
      <button type="submit">{texts.turns.send}</button>
    </form>
  );
}

async function search(query: string, place: Place, signal: AbortSignal) {
  if (!place.session) return [];
  const found = await sync.api.get(
    "GET /api/v1/sessions/{agent}/{name}/search",
    { path: sessionPath(place.session), query: { query, limit: 20 } },
    signal,
  );
  return found.map((each) => ({ href: turnHash(place.session, turnNumber(each.id)), title: each.id, text: each.line }));
}

export default {
  name: "turns",
  title: texts.turns.title,
  scope: "session",
  order: 0,
  View: Turns,
  search,
} satisfies PageView;

// Epochs on a time line: what the window took before and after each, and why it was planned anew.
import { useRef, useState } from "preact/hooks";
import type { EpochSummary } from "./api_types.ts";
import { focusOn, useWidth } from "./drawing.ts";
import { exactly, when, whole } from "./format.ts";
import { stepFrom, turnsOf } from "./gradient_layout.ts";
import { placeHash } from "./router.ts";
import * as texts from "./texts.ts";
import { gradient as t } from "./texts.ts";

const HIGH = 76;
const FOOT = 18;
const LEAST = 7;
const MOST = 26;
/** Bars are cut above so many times the highest of those after. */
const MOST_GROWN = 2.5;

export function EpochLine({ session, epochs }: { session: string; epochs: EpochSummary[] }) {
  const [box, width] = useWidth<HTMLDivElement>();
  const [chosen, setChosen] = useState(-1);
  const [older, setOlder] = useState(0);
  const picture = useRef<SVGSVGElement>(null);
  const most = Math.max(Math.floor(width / LEAST), 1);
  const end = Math.max(epochs.length - older, 1);
  const shown = epochs.slice(Math.max(end - most, 0), end);
  const slot = Math.min(width / Math.max(shown.length, 1), MOST);
  const highest = Math.max(1, ...shown.map((each) => Math.max(each.before ?? 0, each.after)));
  // One long turn would make all others flat.
  const top = Math.min(highest, MOST_GROWN * Math.max(1, ...shown.map((each) => each.after)));
  const tall = (tokens: number) => HIGH * Math.min(tokens / top, 1);
  const focus = Math.min(chosen < 0 ? shown.length - 1 : chosen, shown.length - 1);
  const now = shown[chosen];
  const link = (epoch: EpochSummary, ...against: number[]) =>
    placeHash({ scope: "session", session, view: "gradient", rest: [turnsOf(epoch.at)[0], ...against].map((each) => `T-${each}`) });
  const onKeyDown = (event: KeyboardEvent) => {
    const next = stepFrom(focus, shown.length, event.key);
    if (next >= 0) {
      setChosen(next);
      focusOn(picture.current, next);
    } else if (event.key === "Enter") location.hash = link(shown[focus]!);
    else return;
    event.preventDefault();
    event.stopPropagation();
  };
  const page = (by: number) => {
    setChosen(-1);
    setOlder(Math.min(Math.max(older + by, 0), Math.max(epochs.length - most, 0)));
  };
  const [first, last] = [shown[0], shown.at(-1)];
  return (
    <section class="epochs" aria-labelledby="epochs-title" ref={box}>
      <h2 id="epochs-title">{t.epochs}</h2>
      {!epochs.length && <p class="about">{t.noEpochs}</p>}
      {now ? (
        <p class="readout">
          <strong>{t.epoch(now.number)}</strong> <span>{texts.epochReasons[now.reason]}</span>
          <span class="about">
            {exactly(now.time)} · {t.cost(now.before === null ? "?" : whole(now.before), whole(now.after), whole(now.budget))}
            {now.forced && ` · ${t.forced}`}
          </span>
          <a href={link(now)}>{t.promptOf(turnsOf(now.at)[0])}</a>
          {turnsOf(now.at)[0] > 1 && <a href={link(now, turnsOf(now.at)[0] - 1)}>{t.against(turnsOf(now.at)[0] - 1)}</a>}
        </p>
      ) : (
        epochs.length > 0 && <p class="readout about">{t.chooseEpoch}</p>
      )}
      {width > 0 && epochs.length > 0 && (
        <svg ref={picture} width={width} height={HIGH + FOOT} role="group" aria-label={t.epochs} onKeyDown={onKeyDown}>
          <line class="axis" x1={0} x2={width} y1={HIGH + 0.5} y2={HIGH + 0.5} />
          {shown.map((each, at) => (
            <g
              key={each.number}
              data-at={at}
              class={`epoch ${each.forced ? "forced" : ""} ${at === chosen ? "is-chosen" : ""}`}
              role="button"
              tabIndex={at === focus ? 0 : -1}
              aria-label={`${t.epoch(each.number)}, ${each.at}, ${texts.epochReasons[each.reason]}, ${t.cost(each.before === null ? "?" : whole(each.before), whole(each.after), whole(each.budget))}`}
              onFocus={() => setChosen(at)}
              onPointerEnter={() => setChosen(at)}
              onClick={() => {
                location.hash = link(each);
              }}
            >
              <rect class="all" x={at * slot} y={0} width={slot} height={HIGH + FOOT} />
              {each.before !== null && (
                <rect class="before" x={at * slot + 1} y={HIGH - tall(each.before)} width={Math.max(slot - 2, 1)} height={tall(each.before)} />
              )}
              <rect class="after" x={at * slot + 1} y={HIGH - tall(each.after)} width={Math.max(slot - 2, 1)} height={tall(each.after)} />
            </g>
          ))}
          <text class="foot" x={0} y={HIGH + 14}>
            {first && `${when(first.time)} · ${first.at.replace(/\.\d+$/, "")}`}
          </text>
          {shown.length * slot > 240 && (
            <text class="foot" x={shown.length * slot} y={HIGH + 14} text-anchor="end">
              {last && `${when(last.time)} · ${last.at.replace(/\.\d+$/, "")}`}
            </text>
          )}
        </svg>
      )}
      {epochs.length > 0 && (
        <p class="about">
          {counted(epochs)}
          {end > most && (
            <button class="quiet" onClick={() => page(most)}>
              {t.older}
            </button>
          )}
          {older > 0 && (
            <button class="quiet" onClick={() => page(-most)}>
              {t.newer}
            </button>
          )}
        </p>
      )}
    </section>
  );
}

/** How often there was which reason. */
function counted(epochs: EpochSummary[]): string {
  const counts = new Map<EpochSummary["reason"], number>();
  for (const { reason } of epochs) counts.set(reason, (counts.get(reason) ?? 0) + 1);
  return [...counts]
    .sort(([, one], [, other]) => other - one)
    .map(([reason, count]) => `${count}× ${texts.epochReasons[reason]}`)
    .join(" · ");
}

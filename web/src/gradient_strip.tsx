// The picture of a window: above, each element as wide as its tokens and as high as its level; below,
// the whole history, each element as wide as what it stands for.
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import type { Explained } from "./api_types.ts";
import { focusOn, useWidth } from "./drawing.ts";
import { short, whole } from "./format.ts";
import { heightOf, levelAt, type Placed, place, stepFrom, turnAt } from "./gradient_layout.ts";
import { type Level, LEVELS } from "./levels.ts";
import { turnHash } from "./router.ts";
import { downloadSvg } from "./svg_file.ts";
import * as texts from "./texts.ts";
import { gradient as t } from "./texts.ts";

const HIGH = 132;
const APART = 54;
const LOW = 26;
const FOOT = 18;
/** Pixels that a pointer may tremble in a click. */
const STILL = 5;

interface StripProps {
  session: string;
  blocks: Explained[];
  budget: number;
  /** Show a turn at another level; undefined: this window has been sent, or the token may not. */
  onLevel?: ((turn: number, level: Level) => void) | undefined;
}

interface Drag {
  at: number;
  turn: number;
  x: number;
  y: number;
  level: Level | null;
  isMoved: boolean;
}

const mayChange = ({ block }: Placed): boolean => block.kind === "block" || block.kind === "native";

export function GradientStrip({ session, blocks, budget, onLevel }: StripProps) {
  const [box, width] = useWidth<HTMLDivElement>();
  const placed = useMemo(() => place(blocks, width, budget), [blocks, width, budget]);
  const [chosen, setChosen] = useState(-1);
  const [turn, setTurn] = useState(0);
  const [drag, setDrag] = useState<Drag | null>(null);
  const picture = useRef<SVGSVGElement>(null);
  const isPointing = useRef(false);
  const focus = Math.min(chosen < 0 ? placed.length - 1 : chosen, placed.length - 1);
  const now = placed[chosen];
  const choose = (at: number, share = 0) => {
    const element = placed[at];
    if (!element) return;
    setChosen(at);
    setTurn(turnAt(element, share));
  };
  // A window that was planned anew: what is chosen is where its turn stands now.
  useEffect(() => {
    const found = placed.findIndex((each) => each.first <= turn && turn <= each.last && mayChange(each));
    if (chosen < 0 || found < 0 || found === chosen) return;
    setChosen(found);
    if (picture.current?.contains(document.activeElement)) focusOn(picture.current, found);
  }, [blocks]);
  const open = (number: number) => {
    if (number) location.hash = turnHash(session, number);
  };
  const change = (element: Placed | undefined, number: number, level: Level | null) => {
    if (element && level && onLevel && mayChange(element) && (level !== element.level || element.first !== element.last)) {
      onLevel(number, level);
    }
  };

  const shareOf = (event: PointerEvent, element: Placed) => {
    const x = event.clientX - picture.current!.getBoundingClientRect().left;
    const isBelow = event.clientY - picture.current!.getBoundingClientRect().top > HIGH;
    return isBelow ? (x - element.rawX) / element.rawWidth : (x - element.x) / element.width;
  };
  const onPointerDown = (event: PointerEvent, at: number) => {
    const element = placed[at]!;
    const share = shareOf(event, element);
    choose(at, share);
    isPointing.current = true;
    if (event.pointerType === "touch" || event.button) return;
    (event.currentTarget as Element).setPointerCapture(event.pointerId);
    setDrag({ at, turn: turnAt(element, share), x: event.clientX, y: event.clientY, level: null, isMoved: false });
  };
  const onPointerMove = (event: PointerEvent, at: number) => {
    if (!drag) return choose(at, shareOf(event, placed[at]!));
    const isMoved = drag.isMoved || Math.hypot(event.clientX - drag.x, event.clientY - drag.y) > STILL;
    const top = picture.current!.getBoundingClientRect().top;
    const level = onLevel && isMoved && mayChange(placed[drag.at]!) ? levelAt((event.clientY - top) / HIGH) : null;
    setDrag({ ...drag, isMoved, level });
  };
  const onPointerUp = () => {
    isPointing.current = false;
    if (!drag) return;
    if (drag.isMoved) change(placed[drag.at], drag.turn, drag.level);
    else open(drag.turn);
    setDrag(null);
  };
  const onKeyDown = (event: KeyboardEvent) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const { key } = event;
    const element = placed[focus];
    const next = stepFrom(focus, placed.length, key);
    const level = LEVELS.find((each) => each.toLowerCase() === key);
    const by = { ArrowUp: -1, ArrowDown: 1 }[key];
    if (next >= 0) {
      choose(next);
      focusOn(picture.current, next);
    } else if (key === "Enter" || key === " ") open(turn || element?.first || 0);
    else if (level) change(element, turn || element?.first || 0, level);
    else if (by && element?.level) change(element, turn || element.first, LEVELS[LEVELS.indexOf(element.level) + by] ?? null);
    else return;
    event.preventDefault();
    event.stopPropagation();
  };

  const free = Math.max(0, width - placed.reduce((sum, each) => sum + each.width, 0));
  const height = HIGH + APART + LOW + FOOT;
  const shapes = useMemo(
    () =>
      placed.map((each, at) => (
        <g key={at} class={`shape ${each.block.kind} level-${each.level ?? "none"}`}>
          {each.rawWidth > 0 && (
            <path
              class="ray"
              d={`M${each.x} ${HIGH}H${each.x + each.width}L${each.rawX + each.rawWidth} ${HIGH + APART}H${each.rawX}Z`}
            />
          )}
          <rect class="bar" x={each.x} y={HIGH * (1 - heightOf(each.level))} width={Math.max(each.width - 1, 0.6)} height={HIGH * heightOf(each.level)} />
          <rect class="bar" x={each.rawX} y={HIGH + APART} width={Math.max(each.rawWidth - (each.rawWidth > 3 ? 1 : 0), 0)} height={LOW} />
          {each.width > 8 * each.block.name.length && (
            <text class="name" x={each.x + 4} y={HIGH - 6}>
              {each.block.name}
            </text>
          )}
        </g>
      )),
    [placed],
  );
  return (
    <div class="strip" ref={box}>
      <Readout session={session} element={now} turn={turn} onTurn={setTurn} onLevel={onLevel && ((number, level) => change(now, number, level))} />
      {width > 0 && (
        <svg ref={picture} class={drag?.level ? "window dragging" : "window"} width={width} height={height} role="group" aria-label={t.strip} onKeyDown={onKeyDown}>
          {LEVELS.map((level, at) => (
            <g key={level} class="lane" aria-hidden="true">
              <line x1={0} x2={width} y1={(HIGH * at) / 4 + 0.5} y2={(HIGH * at) / 4 + 0.5} />
              <text x={width - 4} y={(HIGH * at) / 4 + 13} text-anchor="end">
                {level}
              </text>
            </g>
          ))}
          {free > 1 && (
            <rect class="free" x={width - free + 0.5} y={0.5} width={free - 1} height={HIGH - 1} />
          )}
          <g aria-hidden="true">{shapes}</g>
          {now && (
            <g class="chosen" aria-hidden="true">
              <rect x={now.x} y={HIGH * (1 - heightOf(now.level))} width={Math.max(now.width, 2)} height={HIGH * heightOf(now.level)} />
              <rect x={now.rawX} y={HIGH + APART} width={Math.max(now.rawWidth, now.block.raw ? 2 : 0)} height={LOW} />
            </g>
          )}
          {drag?.level && (
            <g class="ghost" aria-hidden="true">
              <rect x={placed[drag.at]!.x} y={HIGH * (1 - heightOf(drag.level))} width={Math.max(placed[drag.at]!.width, 3)} height={HIGH * heightOf(drag.level)} />
              <text x={Math.min(placed[drag.at]!.x + 4, width - 90)} y={HIGH * (1 - heightOf(drag.level)) + 14}>
                T-{drag.turn} → {drag.level}
              </text>
            </g>
          )}
          {placed.map((each, at) => (
            <g
              key={at}
              data-at={at}
              class="hit"
              role="button"
              tabIndex={at === focus ? 0 : -1}
              aria-label={t.element(each.block.name, each.level, each.block.tokens, each.block.raw, each.block.kind)}
              onFocus={() => !isPointing.current && at !== chosen && choose(at)}
              onPointerDown={(event: PointerEvent) => onPointerDown(event, at)}
              onPointerMove={(event: PointerEvent) => onPointerMove(event, at)}
              onPointerUp={onPointerUp}
              onPointerCancel={() => {
                isPointing.current = false;
                setDrag(null);
              }}
            >
              <rect x={each.x} y={0} width={Math.max(each.width, 1)} height={HIGH} />
              <rect x={each.rawX} y={HIGH + APART} width={each.rawWidth} height={LOW} />
            </g>
          ))}
          <text class="foot" x={0} y={height - 4}>
            {t.below(short(placed.reduce((sum, each) => sum + each.block.raw, 0)))}
          </text>
        </svg>
      )}
      <p class="about">
        {onLevel ? t.how : t.howSent}
        <button class="quiet" onClick={() => picture.current && downloadSvg(picture.current, `${session.replace("/", "-")}-window.svg`)}>
          {t.download}
        </button>
      </p>
    </div>
  );
}

/** What is chosen in the picture: it stands above it, so that a pointer gets here without crossing others. */
function Readout(props: {
  session: string;
  element: Placed | undefined;
  turn: number;
  onTurn: (turn: number) => void;
  onLevel?: ((turn: number, level: Level) => void) | undefined;
}) {
  const { session, element, turn, onTurn, onLevel } = props;
  if (!element) return <p class="readout about">{t.choose}</p>;
  const { block, level, first, last } = element;
  return (
    <div class="readout" role="group" aria-label={t.chosen}>
      <strong>{block.name || texts.elementKinds[block.kind]}</strong>
      <span>{level ? texts.levelNames[level] : texts.elementKinds[block.kind]}</span>
      <span class="about">
        {block.raw ? t.standsFor(whole(block.tokens), whole(block.raw)) : texts.turns.tokens(whole(block.tokens))} · {block.why}
      </span>
      {first > 0 && (
        <span class="turn-of">
          {first < last && (
            <input
              type="number"
              aria-label={t.turnOfRange}
              min={first}
              max={last}
              value={turn}
              onInput={(event) => {
                const number = Number(event.currentTarget.value);
                if (number >= first && number <= last) onTurn(number);
              }}
            />
          )}
          <a href={turnHash(session, turn || first)}>{t.open(turn || first)}</a>
          {onLevel && mayChange(element) && (
            <span class="levels" role="group" aria-label={texts.turns.levelOf(turn || first)}>
              {LEVELS.map((each) => (
                <button key={each} aria-pressed={each === level && first === last} title={texts.levelNames[each]} onClick={() => onLevel(turn || first, each)}>
                  {each}
                </button>
              ))}
            </span>
          )}
        </span>
      )}
    </div>
  );
}

// The window as a strip: where each element stands, what it covers, which turn is under the pointer.
// Pure.
import type { Explained } from "./api_types.ts";
import { type Level, LEVELS } from "./levels.ts";

/** An element of the window, in its place: `x` and `width` among what is shown, `rawX` and `rawWidth`
 * among what it stands for. All in pixels. */
export interface Placed {
  block: Explained;
  level: Level | null;
  first: number;
  last: number;
  x: number;
  width: number;
  rawX: number;
  rawWidth: number;
}

/** Levels in the order of the strip's lanes, the highest first; 1 is the whole height. */
export const heightOf = (level: Level | null): number => (level ? (4 - LEVELS.indexOf(level)) / 4 : 1);

const NAME = /^T-(\d+)(?:\.\d+)?(?:-through-(?:T-)?(\d+)(\.\d+)?)?$/;

/** The first and the last turn of a name: `T-50-through-100`, `T-183.1-through-183.40`, `T-7`. */
export function turnsOf(name: string): [number, number] {
  const found = NAME.exec(name);
  if (!found) return [0, 0];
  const first = Number(found[1]);
  return [first, found[2] === undefined ? first : Number(found[2])];
}

export function place(blocks: Explained[], width: number, budget: number): Placed[] {
  const tokens = blocks.reduce((sum, each) => sum + each.tokens, 0);
  const raw = blocks.reduce((sum, each) => sum + each.raw, 0);
  const scale = width / Math.max(tokens, budget, 1);
  const rawScale = width / Math.max(raw, 1);
  let x = 0;
  let rawX = 0;
  return blocks.map((block) => {
    const [first, last] = turnsOf(block.name);
    const placed = {
      block,
      level: block.level ?? null,
      first,
      last,
      x,
      width: block.tokens * scale,
      rawX,
      rawWidth: block.raw * rawScale,
    };
    x += placed.width;
    rawX += placed.rawWidth;
    return placed;
  });
}

/** Of a range, the turn that is a share of its way along. */
export function turnAt({ first, last }: Placed, share: number): number {
  const count = last - first + 1;
  return first + Math.min(Math.max(Math.floor(share * count), 0), count - 1);
}

/** The level of the lane at a share of the strip's height, from above. */
export const levelAt = (share: number): Level => LEVELS[Math.min(Math.max(Math.floor(share * 4), 0), 3)]!;

/** Where an arrow key leads from one of so many; -1 if it is none. */
export function stepFrom(at: number, count: number, key: string): number {
  const to = { ArrowLeft: at - 1, ArrowRight: at + 1, Home: 0, End: count - 1 }[key];
  return to === undefined ? -1 : Math.min(Math.max(to, 0), count - 1);
}

// The difference of two texts by lines. Lines that both have once are anchors (the longest run of them
// that is in order in both); between two anchors, the longest common lines if that is cheap. Pure.

export interface Change {
  kind: "same" | "gone" | "new";
  lines: string[];
}

/** Above so many comparisons, what lies between two anchors counts as replaced. */
const MOST_CELLS = 1_000_000;

export function difference(before: string, after: string): Change[] {
  const found: Change[] = [];
  const add = (kind: Change["kind"], lines: string[]) => {
    if (!lines.length) return;
    const last = found.at(-1);
    if (last?.kind === kind) last.lines.push(...lines);
    else found.push({ kind, lines: [...lines] });
  };
  compare(before.split("\n"), after.split("\n"), add);
  return found;
}

type Add = (kind: Change["kind"], lines: string[]) => void;

function compare(old: string[], now: string[], add: Add): void {
  let start = 0;
  while (start < old.length && start < now.length && old[start] === now[start]) start++;
  let end = 0;
  const most = Math.min(old.length, now.length) - start;
  while (end < most && old[old.length - 1 - end] === now[now.length - 1 - end]) end++;
  add("same", old.slice(0, start));
  between(old.slice(start, old.length - end), now.slice(start, now.length - end), add);
  add("same", old.slice(old.length - end));
}

function between(old: string[], now: string[], add: Add): void {
  const anchors = old.length && now.length ? commonOnce(old, now) : [];
  if (!anchors.length) {
    if (old.length * now.length > MOST_CELLS) {
      add("gone", old);
      add("new", now);
    } else longest(old, now, add);
    return;
  }
  let [at, to] = [0, 0];
  for (const [one, other] of [...anchors, [old.length, now.length] as const]) {
    compare(old.slice(at, one), now.slice(to, other), add);
    add("same", old.slice(one, one + 1));
    [at, to] = [one + 1, other + 1];
  }
}

/** Places of lines that each has once, in the order of both. */
function commonOnce(old: string[], now: string[]): [number, number][] {
  const inOld = once(old);
  const inNow = once(now);
  // The longest increasing run (patience sorting).
  const tops: { pair: [number, number]; before: number }[] = [];
  const piles: number[] = [];
  for (const [line, at] of inOld) {
    const to = inNow.get(line);
    if (to === undefined) continue;
    let [low, high] = [0, piles.length];
    while (low < high) {
      const middle = (low + high) >> 1;
      if (tops[piles[middle]!]!.pair[1] < to) low = middle + 1;
      else high = middle;
    }
    tops.push({ pair: [at, to], before: low ? piles[low - 1]! : -1 });
    piles[low] = tops.length - 1;
  }
  const found: [number, number][] = [];
  for (let at = piles.at(-1) ?? -1; at >= 0; at = tops[at]!.before) found.push(tops[at]!.pair);
  return found.reverse();
}

function once(lines: string[]): Map<string, number> {
  const places = new Map<string, number>();
  lines.forEach((line, at) => places.set(line, places.has(line) ? -1 : at));
  for (const [line, at] of places) if (at < 0) places.delete(line);
  return places;
}

/** The longest common lines, by a table of their lengths. */
function longest(old: string[], now: string[], add: Add): void {
  const wide = now.length + 1;
  const table = new Uint32Array((old.length + 1) * wide);
  for (let at = old.length - 1; at >= 0; at--) {
    for (let to = now.length - 1; to >= 0; to--) {
      table[at * wide + to] =
        old[at] === now[to]
          ? table[(at + 1) * wide + to + 1]! + 1
          : Math.max(table[(at + 1) * wide + to]!, table[at * wide + to + 1]!);
    }
  }
  let [at, to] = [0, 0];
  while (at < old.length || to < now.length) {
    if (at < old.length && to < now.length && old[at] === now[to]) {
      add("same", [old[at++]!]);
      to++;
    } else if (to >= now.length || (at < old.length && table[(at + 1) * wide + to]! >= table[at * wide + to + 1]!)) {
      add("gone", [old[at++]!]);
    } else add("new", [now[to++]!]);
  }
}

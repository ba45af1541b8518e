// A list of any number of turns, of which only those near the screen are elements.
//
// Heights that were not measured are estimated. The list holds on to an anchor, the turn at the top
// of the screen, and puts it back to its place whenever something above it turns out higher or
// lower; at the end it holds on to the end. So nothing that arrives moves what somebody reads.
import type { ComponentChildren } from "preact";
import { useLayoutEffect, useReducer, useRef } from "preact/hooks";
import { Heights } from "./heights.ts";

const ESTIMATE = 140;
/** Pixels above and below the screen that are elements, too. */
const AHEAD = 900;
/** Pixels from the end that count as the end. */
const END = 48;

/** Where a list stands; kept for each session, so that one comes back to where one was. */
export interface Stand {
  heights: Heights;
  anchor: { at: number; offset: number };
  isAtEnd: boolean;
}

export const newStand = (): Stand => ({ heights: new Heights(ESTIMATE), anchor: { at: 0, offset: 0 }, isAtEnd: true });

export interface ListHandle {
  /** Put this item on screen, at the top unless it is there. */
  show: (at: number, isExact?: boolean) => void;
  end: () => void;
  /** The items on screen. */
  seen: () => [number, number];
}

interface ListProps {
  stand: Stand;
  count: number;
  label: string;
  item: (at: number) => ComponentChildren;
  tail: ComponentChildren;
  /** What is on screen, a while after it is. */
  onLook: (first: number, last: number) => void;
  onEnd: (isAtEnd: boolean) => void;
  handle: (list: ListHandle) => void;
}

export function TurnList({ stand, count, label, item, tail, onLook, onEnd, handle }: ListProps) {
  const scroller = useRef<HTMLDivElement>(null);
  const space = useRef<HTMLDivElement>(null);
  const shown = useRef<HTMLDivElement>(null);
  const observer = useRef<ResizeObserver | null>(null);
  const observed = useRef(new Set<Element>());
  /** Where the list put itself: its own scrolling changes no anchor, whose height may be estimated. */
  const put = useRef(-1);
  const [, render] = useReducer((count: number) => count + 1, 0);
  const { heights } = stand;
  if (count !== heights.count) heights.grow(count);
  const [first, last] = range(stand, scroller.current, count);
  const drawn = useRef<[number, number]>([first, last]);
  drawn.current = [first, last];

  /** Measure what is there, and put it where it belongs. */
  const settle = () => {
    const box = scroller.current;
    if (!box || !shown.current || !space.current) return;
    for (const element of shown.current.children) {
      heights.set(Number((element as HTMLElement).dataset.at), (element as HTMLElement).getBoundingClientRect().height);
    }
    space.current.style.height = `${heights.total}px`;
    shown.current.style.transform = `translateY(${heights.top(drawn.current[0])}px)`;
    const wanted = stand.isAtEnd ? box.scrollHeight - box.clientHeight : heights.top(stand.anchor.at) + stand.anchor.offset;
    if (Math.abs(box.scrollTop - wanted) >= 1) {
      box.scrollTop = wanted;
      put.current = box.scrollTop;
    }
    const [from, to] = range(stand, box, count);
    if (from < drawn.current[0] || to > drawn.current[1]) render(0);
  };

  const onScroll = () => {
    const box = scroller.current;
    if (!box) return; // the event of a list that has just gone
    const isAtEnd = box.scrollTop + box.clientHeight >= box.scrollHeight - END;
    if (isAtEnd !== stand.isAtEnd) {
      stand.isAtEnd = isAtEnd;
      onEnd(isAtEnd);
    }
    if (Math.abs(box.scrollTop - put.current) >= 1) {
      const at = heights.at(box.scrollTop);
      stand.anchor = { at, offset: box.scrollTop - heights.top(at) };
      put.current = -1;
    }
    const [from, to] = range(stand, box, count);
    const [drawnFrom, drawnTo] = drawn.current;
    const isNear = from >= drawnFrom && to <= drawnTo;
    if (!isNear || from > drawnFrom + 20 || to < drawnTo - 20) render(0);
    onLook(heights.at(box.scrollTop), heights.at(box.scrollTop + box.clientHeight));
  };

  useLayoutEffect(() => {
    observer.current = new ResizeObserver(settle);
    observer.current.observe(scroller.current!);
    observer.current.observe(scroller.current!.lastElementChild!);
    handle({
      show: (at, isExact = false) => {
        const box = scroller.current!;
        const top = heights.top(at);
        const isSeen = top >= box.scrollTop && top + Math.min(heights.of(at), box.clientHeight) <= box.scrollTop + box.clientHeight + 1;
        if (isSeen && !isExact) return;
        stand.isAtEnd = false;
        stand.anchor = { at, offset: 0 };
        onEnd(false);
        render(0);
        onLook(at, at + Math.ceil(box.clientHeight / ESTIMATE));
      },
      end: () => {
        stand.isAtEnd = true;
        onEnd(true);
        render(0);
      },
      seen: () => {
        const box = scroller.current!;
        return [heights.at(box.scrollTop + 1), heights.at(box.scrollTop + box.clientHeight - 1)];
      },
    });
    return () => observer.current?.disconnect();
  }, []);

  useLayoutEffect(() => {
    settle();
    const now = new Set(shown.current!.children);
    for (const element of observed.current) if (!now.has(element)) observer.current!.unobserve(element);
    for (const element of now) if (!observed.current.has(element)) observer.current!.observe(element);
    observed.current = now;
    const box = scroller.current!;
    onLook(heights.at(box.scrollTop), heights.at(box.scrollTop + box.clientHeight));
  });

  const items = [];
  for (let at = first; at < last; at++) {
    items.push(
      <div key={at} class="slot" data-at={at}>
        {item(at)}
      </div>,
    );
  }
  return (
    <div class="scroller" ref={scroller} onScroll={onScroll} tabIndex={0} role="region" aria-label={label}>
      <div class="space" ref={space}>
        <div class="shown" ref={shown}>
          {items}
        </div>
      </div>
      <div class="tail">{tail}</div>
    </div>
  );
}

/** The items that have to be elements. */
function range(stand: Stand, box: HTMLDivElement | null, count: number): [number, number] {
  const { heights, anchor, isAtEnd } = stand;
  const screen = box?.clientHeight || 1_000;
  const top = isAtEnd ? Math.max(heights.total - screen, 0) : heights.top(Math.min(anchor.at, count)) + anchor.offset;
  const first = heights.at(Math.max(top - AHEAD, 0));
  const last = Math.min(heights.at(top + screen + AHEAD) + 1, count);
  return [first, last];
}

import { useLayoutEffect, useRef, useState } from "preact/hooks";

/** The width of an element as it is now, for pictures that are drawn in pixels. */
export function useWidth<T extends Element>() {
  const element = useRef<T>(null);
  const [width, setWidth] = useState(0);
  useLayoutEffect(() => {
    const watch = new ResizeObserver(([entry]) => setWidth(Math.floor(entry?.contentRect.width ?? 0)));
    if (element.current) watch.observe(element.current);
    return () => watch.disconnect();
  }, []);
  return [element, width] as const;
}

/** One of a picture's parts takes the focus: of those only one is on the way of the Tab key. */
export const focusOn = (picture: SVGSVGElement | null, at: number): void =>
  picture?.querySelector<SVGElement>(`[data-at="${at}"]`)?.focus();

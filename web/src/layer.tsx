// A layer above the page. It takes the focus, keeps it, and gives it back.
import type { ComponentChildren } from "preact";
import { useLayoutEffect, useRef } from "preact/hooks";
import { store } from "./store.ts";
import * as texts from "./texts.ts";

export const closeLayer = (): void => store.setState({ layer: "" });

export function Layer({ title, children }: { title: string; children: ComponentChildren }) {
  const box = useRef<HTMLDialogElement>(null);
  useLayoutEffect(() => {
    // At once: what is typed next is meant for it, also on a busy machine.
    const before = document.activeElement as HTMLElement | null;
    box.current?.showModal();
    return () => before?.focus();
  }, []);
  const onClick = (event: MouseEvent) => {
    if (event.target === box.current) closeLayer();
  };
  return (
    <dialog ref={box} class="layer" aria-label={title} onClose={closeLayer} onClick={onClick}>
      <div class="box">
        <div class="top">
          <h2>{title}</h2>
          <button class="quiet" onClick={closeLayer}>
            {texts.close}
          </button>
        </div>
        {children}
      </div>
    </dialog>
  );
}

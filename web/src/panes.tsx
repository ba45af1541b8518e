// What views of many things share: a list beside one of them, tabs within a view, facts.
import type { ComponentChildren } from "preact";
import { useLayoutEffect, useRef, useState } from "preact/hooks";
import "./panes.css";
import { type Action, useAction } from "./acting.ts";
import { ago, exactly } from "./format.ts";
import { addKeys } from "./keys.ts";
import { turnHash, turnNumber } from "./router.ts";
import * as texts from "./texts.ts";

/**
 * A list, and beside it what was chosen; on a phone one at a time. The list's links are walked with
 * `j` and `k`.
 */
export function Panes(props: { back: string; list: ComponentChildren; children?: ComponentChildren }) {
  const list = useRef<HTMLDivElement>(null);
  useLayoutEffect(() => {
    const step = (by: number) => {
      const links = [...(list.current?.querySelectorAll("a.entry, a.node") ?? [])];
      const at = links.findIndex((each) => each.getAttribute("aria-current") === "true");
      const next = links[at < 0 ? (by > 0 ? 0 : links.length - 1) : Math.min(Math.max(at + by, 0), links.length - 1)];
      if (!next) return;
      next.scrollIntoView({ block: "nearest", inline: "nearest" });
      location.hash = next.getAttribute("href") ?? "";
      // At once: the next key is meant for what this one chose.
      dispatchEvent(new HashChangeEvent("hashchange"));
    };
    return addKeys([
      { key: "j", says: texts.panes.next, run: () => step(1) },
      { key: "k", says: texts.panes.previous, run: () => step(-1) },
    ]);
  }, []);
  const isOpen = props.children !== undefined && props.children !== null && props.children !== false;
  return (
    <div class={isOpen ? "panes open" : "panes"}>
      <div class="pane-list" ref={list}>
        {props.list}
      </div>
      {isOpen && (
        <div class="pane">
          <a class="pane-back" href={props.back}>
            ‹ {texts.panes.back}
          </a>
          {props.children}
        </div>
      )}
    </div>
  );
}

export function Tabs(props: { label: string; tabs: { href: string; title: string; isHere: boolean }[] }) {
  return (
    <nav class="subtabs" aria-label={props.label}>
      {props.tabs.map((each) => (
        <a key={each.href} href={each.href} aria-current={each.isHere ? "page" : undefined}>
          {each.title}
        </a>
      ))}
    </nav>
  );
}

/** Names and values; what is empty is left out. */
export function Facts({ of }: { of: [string, ComponentChildren][] }) {
  return (
    <dl class="of">
      {of
        .filter(([, value]) => value !== undefined && value !== null && value !== "" && value !== false)
        .map(([name, value]) => (
          <div key={name}>
            <dt>{name}</dt>
            <dd>{value}</dd>
          </div>
        ))}
    </dl>
  );
}

/** One of a few. */
export function Choice(props: {
  label: string;
  value: string;
  of: readonly (readonly [value: string, title: string])[];
  onChange: (value: string) => void;
}) {
  return (
    <select
      aria-label={props.label}
      title={props.label}
      value={props.value}
      onChange={(event) => props.onChange(event.currentTarget.value)}
    >
      {props.of.map(([value, text]) => (
        <option key={value} value={value}>
          {text}
        </option>
      ))}
    </select>
  );
}

/** `planner/auth#T-12.3` leads to that turn. */
export function TurnLink({ of }: { of: string }) {
  const [session = "", place = ""] = of.split("#");
  const number = turnNumber(place);
  return number ? (
    <a class="ref" href={turnHash(session, number)}>
      {of}
    </a>
  ) : (
    <span class="ref">{of}</span>
  );
}

export function Quotes({ of }: { of: [string, string][] }) {
  return (
    <>
      {of.map(([turn, text]) => (
        <figure class="quote" key={`${turn} ${text}`}>
          <blockquote>{text}</blockquote>
          <figcaption>
            <TurnLink of={turn} />
          </figcaption>
        </figure>
      ))}
    </>
  );
}

export const Failure = ({ text }: { text: string }) =>
  text ? (
    <p class="error" role="alert">
      {text}
    </p>
  ) : null;

/** A button that does something, and says beside it if that failed. */
export function Act(props: {
  label: string;
  work: () => Promise<unknown>;
  id?: string;
  class?: string;
  title?: string;
  isPressed?: boolean;
  onConflict?: (() => void) | undefined;
}) {
  const action = useAction(props.onConflict);
  return (
    <>
      <button
        type="button"
        id={props.id}
        class={props.class}
        title={props.title}
        aria-pressed={props.isPressed}
        aria-disabled={action.isBusy || undefined}
        onClick={() => void action.run(props.work)}
      >
        {props.label}
      </button>
      <Failure text={action.error} />
    </>
  );
}

/** A row of a list: what it is, when that was, and more about it. */
export function Entry(props: {
  href: string;
  isChosen: boolean;
  what: ComponentChildren;
  at: number | undefined;
  class?: string;
  tags?: string[] | undefined;
  children?: ComponentChildren;
}) {
  return (
    <a class={`entry ${props.class ?? ""}`} href={props.href} aria-current={props.isChosen ? "true" : undefined}>
      <span class="what">{props.what}</span>
      <span class="side" title={exactly(props.at)}>
        {ago(props.at)}
      </span>
      <span class="more">
        {props.children}
        {props.tags?.map((each) => (
          <span key={each} class="tag">
            {each}
          </span>
        ))}
      </span>
    </a>
  );
}

/** Fields, a button that saves them, and what went wrong. */
export function Form(props: {
  label: string;
  save: string;
  onSave: () => Promise<unknown>;
  onCancel: () => void;
  isLocked?: boolean | undefined;
  onConflict?: (() => void) | undefined;
  more?: (run: Action["run"]) => ComponentChildren;
  children: ComponentChildren;
}) {
  const action = useAction(props.onConflict);
  return (
    <form
      class="edit"
      aria-label={props.label}
      onSubmit={(event) => {
        event.preventDefault();
        void action.run(props.onSave);
      }}
    >
      {props.children}
      {!props.isLocked && <Failure text={action.error} />}
      <div class="acts">
        <button type="submit" disabled={props.isLocked}>
          {props.save}
        </button>
        {props.more?.(action.run)}
        <button type="button" onClick={props.onCancel}>
          {texts.cancel}
        </button>
      </div>
    </form>
  );
}

/** A button that asks before it does something for good. */
export function Confirm(props: { label: string; sure: string; now: string; work: () => Promise<unknown>; onConflict?: () => void }) {
  const [isAsking, setAsking] = useState(false);
  if (!isAsking) {
    return (
      <button class="quiet" onClick={() => setAsking(true)}>
        {props.label}
      </button>
    );
  }
  return (
    <>
      <span>{props.sure}</span>
      <Act label={props.now} work={props.work} onConflict={props.onConflict} />
      <button onClick={() => setAsking(false)}>{texts.panes.keep}</button>
    </>
  );
}

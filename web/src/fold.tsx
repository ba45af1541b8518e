// Something folded: its content is made when it is opened.
import type { ComponentChildren } from "preact";
import { useState } from "preact/hooks";

export function Fold(props: { label: ComponentChildren; class?: string; children: () => ComponentChildren }) {
  const [isOpen, setOpen] = useState(false);
  return (
    <details class={`fold ${props.class ?? ""}`} onToggle={(event) => setOpen(event.currentTarget.open)}>
      <summary>{props.label}</summary>
      {isOpen && <div class="inside">{props.children()}</div>}
    </details>
  );
}

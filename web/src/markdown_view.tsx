// Markdown and code as elements.
import { memo } from "./memo.ts";
import type { ComponentChildren, JSX } from "preact";
import { highlight } from "./highlight.ts";
import * as texts from "./texts.ts";
import { type Block, type Inline, parseMarkdown } from "./markdown.ts";

export const Markdown = memo(function Markdown({ text }: { text: string }) {
  return <div class="markdown">{parseMarkdown(text).map(block)}</div>;
});

function block(of: Block, key: number): JSX.Element {
  switch (of.kind) {
    case "paragraph":
      return <p key={key}>{of.inner.map(inline)}</p>;
    case "heading": {
      // A heading of a message is none of the page.
      return (
        <p key={key} class={`heading heading-${of.level}`}>
          {of.inner.map(inline)}
        </p>
      );
    }
    case "code":
      return <Code key={key} text={of.text} language={of.language} />;
    case "quote":
      return <blockquote key={key}>{of.blocks.map(block)}</blockquote>;
    case "list": {
      const items = of.items.map((blocks, at) => <li key={at}>{item(blocks)}</li>);
      return of.ordered ? (
        <ol key={key} start={of.start}>
          {items}
        </ol>
      ) : (
        <ul key={key}>{items}</ul>
      );
    }
    case "table":
      return (
        <div key={key} class="table" tabIndex={0} role="region" aria-label={texts.table}>
          <table>
            <thead>
              <tr>
                {of.head.map((cell, at) => (
                  <th key={at}>{cell.map(inline)}</th>
                ))}
              </tr>
            </thead>
            <tbody>
              {of.rows.map((row, at) => (
                <tr key={at}>
                  {row.map((cell, at) => (
                    <td key={at}>{cell.map(inline)}</td>
                  ))}
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      );
    case "rule":
      return <hr key={key} />;
  }
}

/** A lone paragraph of an item stands without one. */
function item(blocks: Block[]): ComponentChildren {
  const [first, ...rest] = blocks;
  return first?.kind === "paragraph" ? [...first.inner.map(inline), ...rest.map(block)] : blocks.map(block);
}

function inline(of: Inline, key: number): JSX.Element | string {
  switch (of.kind) {
    case "text":
      return of.text;
    case "code":
      return <code key={key}>{of.text}</code>;
    case "strong":
      return <strong key={key}>{of.inner.map(inline)}</strong>;
    case "em":
      return <em key={key}>{of.inner.map(inline)}</em>;
    case "del":
      return <del key={key}>{of.inner.map(inline)}</del>;
    case "link":
      return (
        <a key={key} href={of.href} rel="noopener noreferrer" target="_blank">
          {of.inner.map(inline)}
        </a>
      );
    case "break":
      return <br key={key} />;
  }
}

/** Code, in the colours of its language, with line numbers if asked for. */
export const Code = memo(function Code(props: { text: string; language?: string; numbered?: boolean }) {
  const { text, language = "", numbered = false } = props;
  const lines = numbered ? text.split("\n").length : 0;
  return (
    <div class={numbered ? "code numbered" : "code"} tabIndex={0} role="region" aria-label={language || "code"}>
      {numbered && (
        <pre class="numbers" aria-hidden="true">
          {Array.from({ length: lines }, (_, at) => at + 1).join("\n")}
        </pre>
      )}
      <pre>
        <code>
          {highlight(text, language).map((token, at) =>
            token.kind ? (
              <span key={at} class={`hl-${token.kind}`}>
                {token.text}
              </span>
            ) : (
              token.text
            ),
          )}
        </code>
      </pre>
    </div>
  );
});

// Markdown as models write it, read into a tree. HTML in it is text like any other, and the view
// makes elements from the tree, never from strings: nothing in a message can become markup.

export type Inline =
  | { kind: "text"; text: string }
  | { kind: "code"; text: string }
  | { kind: "strong" | "em" | "del"; inner: Inline[] }
  | { kind: "link"; href: string; inner: Inline[] }
  | { kind: "break" };

export type Block =
  | { kind: "paragraph"; inner: Inline[] }
  | { kind: "heading"; level: number; inner: Inline[] }
  | { kind: "code"; language: string; text: string }
  | { kind: "quote"; blocks: Block[] }
  | { kind: "list"; ordered: boolean; start: number; items: Block[][] }
  | { kind: "table"; head: Inline[][]; rows: Inline[][][] }
  | { kind: "rule" };

const FENCE = /^ {0,3}(`{3,}|~{3,})\s*([^`\s]*)[^`]*$/;
const HEADING = /^ {0,3}(#{1,6})\s+(.*?)(?:\s+#+)?\s*$/;
const RULE = /^ {0,3}([-*_])(?:\s*\1){2,}\s*$/;
// "8123." is an answer, and no list.
const ITEM = /^( {0,3})(?:([-*+])(?:\s+|$)|((\d{1,9})[.)])\s+(?=\S))/;
const QUOTE = /^ {0,3}> ?/;
const TABLE_LINE = /^\s*\|?\s*:?-+:?\s*(\|\s*:?-+:?\s*)*\|?\s*$/;
const DEEPEST = 12;

export function parseMarkdown(text: string): Block[] {
  return parseLines(text.replace(/\r\n?/g, "\n").split("\n"), 0);
}

function parseLines(lines: string[], depth: number): Block[] {
  const blocks: Block[] = [];
  let paragraph: string[] = [];
  const flush = () => {
    if (paragraph.length) blocks.push({ kind: "paragraph", inner: parseInline(paragraph.join("\n")) });
    paragraph = [];
  };
  for (let at = 0; at < lines.length; at++) {
    const line = lines[at]!;
    if (!line.trim()) {
      flush();
      continue;
    }
    const fence = FENCE.exec(line);
    if (fence) {
      flush();
      const code: string[] = [];
      const end = new RegExp(`^ {0,3}${fence[1]![0]}{${fence[1]!.length},}\\s*$`);
      for (at++; at < lines.length && !end.test(lines[at]!); at++) code.push(lines[at]!);
      blocks.push({ kind: "code", language: fence[2]!.toLowerCase(), text: code.join("\n") });
      continue;
    }
    const heading = HEADING.exec(line);
    if (heading) {
      flush();
      blocks.push({ kind: "heading", level: heading[1]!.length, inner: parseInline(heading[2]!) });
      continue;
    }
    if (RULE.test(line)) {
      flush();
      blocks.push({ kind: "rule" });
      continue;
    }
    if (QUOTE.test(line) && depth < DEEPEST) {
      flush();
      const quoted: string[] = [];
      for (; at < lines.length && QUOTE.test(lines[at]!); at++) quoted.push(lines[at]!.replace(QUOTE, ""));
      at--;
      blocks.push({ kind: "quote", blocks: parseLines(quoted, depth + 1) });
      continue;
    }
    const item = ITEM.exec(line);
    // A number in the middle of a paragraph begins no list, unless it is 1.
    if (item && depth < DEEPEST && !(paragraph.length && item[4] && item[4] !== "1")) {
      flush();
      const [list, next] = parseList(lines, at, depth);
      blocks.push(list);
      at = next - 1;
      continue;
    }
    if (line.includes("|") && !paragraph.length && TABLE_LINE.test(lines[at + 1] ?? "") && lines[at + 1]!.includes("-")) {
      const head = cells(line);
      if (head.length === cells(lines[at + 1]!).length) {
        const rows: Inline[][][] = [];
        for (at += 2; at < lines.length && lines[at]!.includes("|"); at++) {
          const row = cells(lines[at]!).slice(0, head.length);
          rows.push([...row, ...Array<string>(head.length - row.length).fill("")].map(parseInline));
        }
        at--;
        blocks.push({ kind: "table", head: head.map(parseInline), rows });
        continue;
      }
    }
    paragraph.push(line);
  }
  flush();
  return blocks;
}

function parseList(lines: string[], from: number, depth: number): [Block, number] {
  const first = ITEM.exec(lines[from]!)!;
  const ordered = first[4] !== undefined;
  const items: Block[][] = [];
  let at = from;
  while (at < lines.length) {
    const found = ITEM.exec(lines[at]!);
    if (!found || (found[4] !== undefined) !== ordered || RULE.test(lines[at]!)) break;
    const indent = Math.min(found[0].length, found[1]!.length + (found[2] ?? found[3])!.length + 4) || 2;
    const own = [lines[at]!.slice(found[0].length)];
    for (at++; at < lines.length; at++) {
      const line = lines[at]!;
      if (!line.trim()) {
        const next = lines[at + 1] ?? "";
        if (!next.startsWith(" ".repeat(Math.min(indent, 2)))) break;
        own.push("");
      } else if (line.startsWith(" ".repeat(indent)) || /^\t/.test(line)) {
        own.push(line.replace(/^\t/, "").slice(line.startsWith("\t") ? 0 : indent));
      } else if (/^ {2,}/.test(line) && ITEM.test(line.trimStart()) && indent > 2) {
        own.push(line.replace(/^ {2}/, ""));
      } else if (ITEM.test(line) || FENCE.test(line) || HEADING.test(line) || QUOTE.test(line) || !own.at(-1)) {
        break;
      } else own.push(line.trimStart());
    }
    items.push(parseLines(own, depth + 1));
    // A blank line between two items.
    if (!lines[at]?.trim() && ITEM.test(lines[at + 1] ?? "")) at++;
  }
  return [{ kind: "list", ordered, start: Number(first[4] ?? 1), items }, at];
}

const cells = (line: string): string[] =>
  line
    .trim()
    .replace(/^\||\|$/g, "")
    .split(/(?<!\\)\|/)
    .map((cell) => cell.trim().replace(/\\\|/g, "|"));

const SAFE = /^(?:https?:\/\/|mailto:)/i;
// Bounded: a text may be made to keep a reader busy.
const INLINE =
  /(`+)([\s\S]{0,2000}?[^`])\1(?!`)|!?\[((?:[^[\]\\]|\\.|\[[^[\]]{0,200}\]){0,500})\]\(\s*<?([^\s<>()]*(?:\([^\s<>()]*\)[^\s<>()]*)*)>?(?:\s+"[^"]*")?\s*\)|(\*\*|__|~~)(?=\S)([\s\S]{0,2000}?\S)\5|([*_])(?=\S)([^*_\n]{0,1000}?[^\s*_])\7|(https?:\/\/[^\s<>()"']*[^\s<>()"'.,;:!?])|\\([!-/:-@[-`{-~])|( {2,}\n|\\\n)/g;

export function parseInline(text: string, depth = 0): Inline[] {
  const found: Inline[] = [];
  let from = 0;
  const say = (said: string) => {
    const last = found.at(-1);
    if (!said) return;
    if (last?.kind === "text") last.text += said;
    else found.push({ kind: "text", text: said });
  };
  for (const match of text.matchAll(INLINE)) {
    const [whole, ticks, code, label, target, pair, strong, star, em, url, escaped, broken] = match;
    const before = text[match.index - 1] ?? " ";
    say(text.slice(from, match.index));
    from = match.index + whole.length;
    const inner = (said: string): Inline[] =>
      depth < DEEPEST ? parseInline(said, depth + 1) : [{ kind: "text", text: said }];
    if (ticks) found.push({ kind: "code", text: code!.replace(/^ ([\s\S]*) $/, "$1") });
    else if (label !== undefined) {
      // Pictures are links: nothing is fetched that nobody asked for.
      if (SAFE.test(target!)) found.push({ kind: "link", href: target!, inner: inner(label || target!) });
      else say(whole);
    } else if (pair) found.push({ kind: pair === "~~" ? "del" : "strong", inner: inner(strong!) });
    else if (star) {
      // snake_case_names stay as they are.
      if (star === "_" && (/\w/.test(before) || /\w/.test(text[from] ?? " "))) say(whole);
      else found.push({ kind: "em", inner: inner(em!) });
    } else if (url) found.push({ kind: "link", href: url, inner: [{ kind: "text", text: url }] });
    else if (escaped) say(escaped);
    else if (broken) found.push({ kind: "break" });
  }
  say(text.slice(from));
  return found;
}

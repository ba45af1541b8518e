// Code in colours, by a few patterns: comments, texts, numbers, words of the language. It is for
// reading, and may be wrong in the corners of a language.

export interface Token {
  kind: "" | "comment" | "string" | "number" | "keyword" | "name";
  text: string;
}

const words = (list: string): Set<string> => new Set(list.split(" "));
const KEYWORDS = {
  python: words(
    "and as assert async await break class continue def del elif else except finally for from global if import in is lambda match case nonlocal not or pass raise return try while with yield None True False self",
  ),
  script: words(
    "abstract as async await break case catch class const continue debugger default delete do else enum export extends finally for from function get if implements import in instanceof interface let new null of private protected public readonly return satisfies set static super switch this throw true false try type typeof undefined var void while yield",
  ),
  shell: words("if then else elif fi for in do done while until case esac function return local export set unset cd echo exit source sudo"),
  sql: words(
    "select from where and or not insert into values update set delete create table index drop alter join left right inner outer on group by order limit offset having union all as distinct null primary key references begin commit rollback with case when then else end is in like between exists",
  ),
  c: words(
    "auto bool break case char class const constexpr continue default defer delete do double else enum extern false final float fn for func go goto if impl import include inline int interface let long loop map match mod move mut namespace new nil nullptr null operator override package pub private protected public range ref register return self short signed sizeof static struct super switch template this throw trait true try type typedef typename union unsigned use using var virtual void volatile where while string usize u8 u32 u64 i32 i64 f64 chan select",
  ),
};
const FAMILY: Record<string, keyof typeof KEYWORDS> = {
  py: "python", python: "python", pyi: "python",
  js: "script", jsx: "script", ts: "script", tsx: "script", javascript: "script", typescript: "script", mjs: "script", json: "script",
  sh: "shell", bash: "shell", zsh: "shell", shell: "shell", console: "shell", dockerfile: "shell", make: "shell",
  sql: "sql",
  c: "c", h: "c", cpp: "c", cc: "c", rust: "c", rs: "c", go: "c", java: "c", kotlin: "c", swift: "c", cs: "c", scala: "c",
  yaml: "shell", yml: "shell", toml: "shell", ini: "shell",
};
const HASH = /#[^\n]*/;
const SLASH = /\/\/[^\n]*|\/\*[\s\S]*?(?:\*\/|$)/;
const DASH = /--[^\n]*/;
const STRING = /"""[\s\S]*?(?:"""|$)|'''[\s\S]*?(?:'''|$)|"(?:\\.|[^"\\\n])*"?|'(?:\\.|[^'\\\n])*'?/;
const TICKS = /`(?:\\.|[^`\\])*`?/;
const NUMBER = /\b(?:0[xob][\da-f_]+|\d[\d_]*(?:\.\d+)?(?:e[+-]?\d+)?)\b/;
const NAME = /[A-Za-z_$][\w$]*(?=\s*\()/;
const WORD = /[A-Za-z_$][\w$]*/;
/** More than that is shown plain: it would take longer than a frame. */
const MOST = 60_000;

const PATTERNS = {
  python: pattern(HASH, STRING),
  script: pattern(SLASH, new RegExp(`${STRING.source}|${TICKS.source}`)),
  shell: pattern(HASH, STRING),
  sql: pattern(DASH, STRING),
  c: pattern(SLASH, STRING),
};

function pattern(comment: RegExp, string: RegExp): RegExp {
  return new RegExp(
    `(${comment.source})|(${string.source})|(${NUMBER.source})|(${NAME.source})|(${WORD.source})`,
    "gi",
  );
}

/** The language of a file, by its ending. */
export const languageOf = (filename: string): string => filename.split(".").pop()?.toLowerCase() ?? "";

export function highlight(code: string, language: string): Token[] {
  const family = FAMILY[language];
  if (!family || code.length > MOST) return [{ kind: "", text: code }];
  const keywords = KEYWORDS[family];
  const found: Token[] = [];
  let from = 0;
  for (const match of code.matchAll(PATTERNS[family])) {
    const [whole, comment, string, number, name, word] = match;
    const said = name ?? word;
    const isKeyword = said !== undefined && keywords.has(family === "sql" ? said.toLowerCase() : said);
    const kind = comment ? "comment" : string ? "string" : number ? "number" : isKeyword ? "keyword" : name ? "name" : "";
    if (!kind) continue;
    if (match.index > from) found.push({ kind: "", text: code.slice(from, match.index) });
    found.push({ kind, text: whole });
    from = match.index + whole.length;
  }
  if (from < code.length) found.push({ kind: "", text: code.slice(from) });
  return found;
}

import assert from "node:assert/strict";
import { test } from "node:test";
import { Heights } from "../src/heights.ts";
import { highlight } from "../src/highlight.ts";
import { parseInline, parseMarkdown } from "../src/markdown.ts";
import { parsePlace, placeHash, turnNumber } from "../src/router.ts";

test("heights: measured ones move what is below them, and grow with the list", () => {
  const heights = new Heights(10);
  heights.grow(5);
  assert.equal(heights.total, 50);
  assert.ok(heights.set(1, 30));
  assert.ok(!heights.set(1, 30));
  assert.deepEqual([heights.top(1), heights.top(2), heights.total], [10, 40, 70]);
  assert.deepEqual([0, 9, 10, 39, 40, 999].map((place) => heights.at(place)), [0, 0, 1, 1, 2, 4]);
  heights.grow(100_000);
  assert.equal(heights.total, 1_000_020);
  assert.ok(heights.set(99_999, 50));
  assert.equal(heights.total, 1_000_060);
  assert.equal(heights.at(1_000_059), 99_999);
});

test("heights agree with a plain sum", () => {
  const heights = new Heights(7);
  const plain = Array<number>(300).fill(7);
  heights.grow(200);
  for (let step = 0; step < 2_000; step++) {
    if (step === 1_000) heights.grow(300);
    const at = (step * 7_919) % heights.count;
    plain[at] = (step * 31) % 90;
    heights.set(at, plain[at]!);
  }
  const sum = (count: number) => plain.slice(0, count).reduce((all, each) => all + each, 0);
  for (const at of [0, 1, 150, 299, 300]) assert.ok(Math.abs(heights.top(at) - sum(at)) <= at);
});

test("markdown: blocks", () => {
  const kinds = parseMarkdown("# T\n\ntext\nmore\n\n- a\n  - b\n- c\n\n1. x\n\n> q\n\n```py\nx = 1\n```\n\n|a|b|\n|-|-|\n|1|2|\n\n---").map((each) => each.kind);
  assert.deepEqual(kinds, ["heading", "paragraph", "list", "list", "quote", "code", "table", "rule"]);
  assert.deepEqual(parseMarkdown("```py\nx <b>\n```"), [{ kind: "code", language: "py", text: "x <b>" }]);
  assert.equal(parseMarkdown("```\nno end")[0]?.kind, "code");
  assert.equal(parseMarkdown("8123.")[0]?.kind, "paragraph");
  const list = parseMarkdown("- a\n  - b\n    - c")[0];
  assert.equal(list?.kind === "list" && list.items[0]?.[1]?.kind, "list");
});

test("markdown: words", () => {
  assert.deepEqual(parseInline("a `b*c*` **d** snake_case_name"), [
    { kind: "text", text: "a " },
    { kind: "code", text: "b*c*" },
    { kind: "text", text: " " },
    { kind: "strong", inner: [{ kind: "text", text: "d" }] },
    { kind: "text", text: " snake_case_name" },
  ]);
  assert.equal(parseInline("[x](https://a.b/c_(d))")[0]?.kind, "link");
});

test("markdown: links lead to the web or to mail, and nowhere else", () => {
  for (const bad of ["javascript:alert(1)", "JaVaScRiPt:alert(1)", "data:text/html,x", "vbscript:x", "file:///etc/passwd", "//evil", "#code=x", "&#106;avascript:x"]) {
    const kinds = JSON.stringify(parseMarkdown(`[x](${bad}) ![x](${bad}) <${bad}>`));
    assert.ok(!kinds.includes('"link"'), bad);
  }
});

test("markdown and code of any kind are read in linear time, without their texts getting lost", () => {
  for (const each of ["**a ", "[", "`", "_a ", "> ", "- ", "| ", "![a](", "~~", "\\", "1. "]) {
    const blocks = parseMarkdown(each.repeat(5_000));
    assert.ok(blocks.length > 0 || !each.trim());
  }
  const code = "def f(x):  # why\n    return 'a' + \"\"\"b\"\"\" * 0x1F if x else None\n";
  for (const language of ["python", "ts", "sql", "sh", "rust", "nonsense", "constructor"]) {
    assert.equal(highlight(code, language).map((token) => token.text).join(""), code);
  }
  assert.ok(highlight(code, "py").some((token) => token.kind === "keyword" && token.text === "return"));
});

test("places and addresses are the same thing", () => {
  const place = { scope: "session" as const, agent: "a b", session: "a b/c#d", view: "turns", rest: ["T-3"] };
  assert.deepEqual(parsePlace(placeHash(place)), place);
  assert.equal(parsePlace("#/bank/costs").view, "costs");
  assert.equal(parsePlace("#/agent/ada").agent, "ada");
  for (const odd of ["", "#", "#/", "#/session/x", "#/%E0%A4%A/x", "#/what/ever"]) assert.ok(parsePlace(odd).scope);
  assert.deepEqual(["T-12", "12", "T-12.3", "t-7", "x", ""].map(turnNumber), [12, 12, 12, 7, 0, 0]);
});

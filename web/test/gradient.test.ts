import assert from "node:assert/strict";
import { test } from "node:test";
import type { Explained } from "../src/api_types.ts";
import { heightOf, levelAt, place, turnAt, turnsOf } from "../src/gradient_layout.ts";
import { promptText } from "../src/prompt_text.ts";
import { difference } from "../src/text_diff.ts";

test("names of elements", () => {
  assert.deepEqual(turnsOf("T-50-through-100"), [50, 100]);
  assert.deepEqual(turnsOf("T-183.1-through-183.40"), [183, 183]);
  assert.deepEqual(turnsOf("T-7.2"), [7, 7]);
  assert.deepEqual(turnsOf(""), [0, 0]);
});

test("elements stand side by side, above what they stand for", () => {
  const block = (name: string, tokens: number, raw: number): Explained => ({ kind: "block", name, level: "T", tokens, raw, why: "" });
  const [first, second] = place([block("T-1-through-4", 10, 300), block("T-5", 40, 100)], 400, 100);
  assert.deepEqual([first!.width, second!.x, second!.width], [40, 40, 160]);
  assert.deepEqual([first!.rawWidth, second!.rawX], [300, 300]);
  assert.deepEqual([0, 0.3, 0.99, 1, -1].map((share) => turnAt(first!, share)), [1, 2, 4, 4, 1]);
  assert.equal(place([block("T-1", 300, 300)], 300, 100)[0]!.width, 300); // over the budget
});

test("lanes are levels", () => {
  assert.deepEqual([0, 0.3, 0.6, 0.9, 1.5, -1].map(levelAt), ["R", "S", "C", "T", "T", "R"]);
  assert.deepEqual([heightOf("R"), heightOf("T"), heightOf(null)], [1, 0.25, 1]);
});

/** A difference, put together again, is what was compared. */
function check(before: string[], after: string[], most?: number): void {
  const found = difference(before.join("\n"), after.join("\n"));
  const side = (kind: string) => found.filter((each) => each.kind === "same" || each.kind === kind).flatMap((each) => each.lines);
  assert.deepEqual(side("gone"), before);
  assert.deepEqual(side("new"), after);
  if (most !== undefined) assert.equal(found.filter((each) => each.kind !== "same").flatMap((each) => each.lines).length, most);
}

test("differences", () => {
  check(["a"], ["a"], 0);
  check(["a", "b", "c"], ["a", "x", "c"], 2);
  check(["a", "b", "a", "b"], ["b", "a", "b", "a"], 2);
  check(["one", "two", "three"], ["three", "one", "two"], 2);
  check([""], ["a", "b"], 3);
  let seed = 7;
  const random = (below: number) => (seed = (seed * 48_271) % 2_147_483_647) % below;
  for (let round = 0; round < 200; round++) {
    const words = (count: number) => Array.from({ length: count + 1 }, () => `w${random(9)}`);
    check(words(random(30)), words(random(30)));
  }
  check(Array.from({ length: 3_000 }, () => "x"), Array.from({ length: 2_000 }, () => "y"), 5_000);
});

test("a request as text, of each API", () => {
  const call = { type: "tool_use", id: "1", name: "read", input: { path: "a" } };
  const messages = [{ role: "user", content: [{ type: "text", text: "Hi" }] }, { role: "assistant", content: [call] }];
  assert.equal(promptText({ system: [{ type: "text", text: "Be brief." }], messages }), '[system]\nBe brief.\n[user]\nHi\n[assistant]\nread({"path":"a"})');
  const chat = [{ role: "assistant", content: "", tool_calls: [{ function: { name: "read", arguments: "{}" } }] }];
  assert.equal(promptText({ messages: chat }), "[assistant]\nread({})");
  const input = [{ type: "function_call_output", call_id: "1", output: "done" }, { role: "user", content: "Hi" }];
  assert.equal(promptText({ instructions: "Be brief.", input }), "[system]\nBe brief.\n[function_call_output]\ndone\n[user]\nHi");
});

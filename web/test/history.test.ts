import assert from "node:assert/strict";
import { test } from "node:test";
import type { Message, Turn } from "../src/api_types.ts";
import {
  emptyHistory,
  hearAnswer,
  hearDelta,
  hearSession,
  hearTurn,
  isAlive,
  mergeTurns,
  missingRuns,
  startHearing,
  versionOf,
} from "../src/history.ts";
import type { TurnEvent } from "../src/live_events.ts";

const says = (role: Message["role"], text: string, id = ""): Message => ({ role, id, parts: [{ kind: "text", text }] });

const turn = (number: number, version: number, ...texts: string[]): Turn => ({
  session: "ada/notes",
  number,
  rounds: [{ number: 1, messages: texts.map((text, at) => says(at ? "assistant" : "user", text)), tokens: null }],
  status: "closed",
  started: 1,
  ended: 2,
  version,
});

const grew = (number: number, cursor: number, role: Message["role"], text: string): TurnEvent => ({
  type: "turn",
  session: "ada/notes",
  cursor,
  turn: number,
  rounds: [{ number: 1, messages: [says(role, text)] }],
  started: 1,
  ended: 3,
});

const textsOf = (of: Turn | undefined) =>
  of?.rounds.flatMap((round) => round.messages.map((message) => message.parts?.map((part) => (part.kind === "text" ? part.text : "")).join("")));

function known(...turns: Turn[]) {
  const history = emptyHistory("ada/notes");
  mergeTurns(history, turns, 0);
  history.through = turns.at(-1)?.number ?? 0;
  history.fresh = true;
  return history;
}

test("the greater version of a turn wins, in whatever order they come", () => {
  const history = known(turn(1, 2, "Hi", "Hello"));
  mergeTurns(history, [turn(1, 1, "Hi")], 0);
  assert.equal(versionOf(history.turns.get(1)!), 2);
  mergeTurns(history, [turn(1, 3, "Hi", "Hello", "More")], 0);
  assert.deepEqual(textsOf(history.turns.get(1)), ["Hi", "Hello", "More"]);
});

test("live events in order grow a turn, each piece once", () => {
  const history = known(turn(1, 1, "Hi", "Hello"));
  assert.ok(hearTurn(history, grew(2, 2, "user", "Which port?")));
  assert.ok(hearTurn(history, grew(2, 3, "assistant", "8123.")));
  assert.ok(hearTurn(history, grew(2, 3, "assistant", "8123.")));
  assert.deepEqual(textsOf(history.turns.get(2)), ["Which port?", "8123."]);
  assert.equal(history.through, 2);
});

test("an event that overtakes the history neither doubles nor hides what is in between", () => {
  const history = known(turn(1, 1, "Hi", "Hello"));
  startHearing(history); // the socket was opened anew, and the server is still asked
  assert.equal(hearTurn(history, grew(4, 9, "assistant", "late")), false);
  assert.equal(history.through, 1, "the cursor stays in front of the gap");
  assert.equal(history.newest, 4);
  assert.deepEqual(missingRuns(history, 1, 4), [[2, 4]]);
  mergeTurns(history, [turn(4, 9, "asked", "late")], 0);
  assert.deepEqual(missingRuns(history, 1, 4), [[2, 3]]);
  assert.deepEqual(textsOf(history.turns.get(4)), ["asked", "late"]);
});

test("a turn is read again when a piece of it may have been missed", () => {
  const history = known(turn(1, 1, "Hi"));
  startHearing(history);
  assert.equal(hearTurn(history, grew(1, 4, "assistant", "third")), false);
  assert.deepEqual(missingRuns(history, 1, 1), [[1, 1]]);
  mergeTurns(history, [turn(1, 3, "Hi", "second")], 0); // as it was before
  assert.deepEqual(missingRuns(history, 1, 1), [[1, 1]]);
  mergeTurns(history, [turn(1, 4, "Hi", "second", "third")], 0);
  assert.deepEqual(missingRuns(history, 1, 1), []);
});

test("the words of an answer follow each other, and what is missing is noticed", () => {
  const history = known(turn(1, 1, "Hi"));
  hearAnswer(history, { type: "answer", session: "", turn: 1, state: "arriving", message: says("assistant", "Hel") }, 0);
  assert.ok(hearDelta(history, { type: "delta", session: "", turn: 1, at: 3, text: "lo" }, 5));
  assert.ok(hearDelta(history, { type: "delta", session: "", turn: 1, at: 3, text: "lo" }, 5), "the same again");
  assert.equal(hearDelta(history, { type: "delta", session: "", turn: 1, at: 9, text: "?" }, 5), false);
  const answer = history.answers.get(1)!;
  assert.deepEqual(answer.message.parts, [{ kind: "text", text: "Hello" }]);
  assert.ok(isAlive(answer, 15_004));
  assert.ok(!isAlive(answer, 15_006), "without a sign of life for 15 seconds it has stopped");
});

test("an answer stays until its turn has it, whichever is told first", () => {
  for (const order of [["ended", "turn"], ["turn", "ended"]]) {
    const history = known(turn(1, 1, "Hi"));
    history.heard = history.heardFrom = 1;
    hearAnswer(history, { type: "answer", session: "", turn: 1, state: "arriving", message: says("assistant", "Hello") }, 0);
    for (const [at, what] of order.entries()) {
      if (what === "ended") hearAnswer(history, { type: "answer", session: "", turn: 1, state: "ended" }, 0);
      else hearTurn(history, grew(1, 2, "assistant", "Hello"));
      const shown = [...(textsOf(history.turns.get(1)) ?? []), ...(history.answers.has(1) ? ["Hello"] : [])];
      assert.deepEqual(shown, ["Hi", "Hello"], `${order}, after ${at + 1}`);
    }
    assert.equal(history.answers.size, 0);
  }
});

test("a partial turn of the server is a turn and an answer", () => {
  const history = known({ ...turn(1, 1, "Hi", "Hel"), status: "partial", writer: "gone" });
  assert.deepEqual(textsOf(history.turns.get(1)), ["Hi"]);
  assert.equal(history.answers.get(1)?.state, "left");
  mergeTurns(history, [turn(1, 2, "Hi", "Hello")], 0);
  assert.equal(history.answers.size, 0);
});

test("what this page sent is settled by its id", () => {
  const history = known(turn(1, 1, "Hi"));
  history.sending = [{ id: "m1", session: "ada/notes", text: "Which?", at: 0, state: "sending" }];
  const sent = grew(2, 2, "user", "Which?");
  sent.rounds[0]!.messages[0]!.id = "m1";
  hearTurn(history, sent);
  assert.deepEqual(history.sending, []);
});

test("forgetting empties what is known, undoing does not", () => {
  const history = known(turn(1, 1, "Hi"), turn(2, 2, "secret"));
  assert.ok(hearSession(history, { type: "session", session: "", cursor: 2, turn: 2, undone: [[2, 2]] }));
  assert.equal(history.turns.size, 2);
  assert.equal(hearSession(history, { type: "session", session: "", cursor: 2, turn: 2, forgets: 1 }), false);
  assert.equal(history.turns.size, 0);
  assert.equal(history.through, 0);
});

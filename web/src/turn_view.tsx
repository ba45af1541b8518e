// One turn: its prompt, what the model thought, said and called, and what tools answered.
import type { ComponentChildren } from "preact";
import { useEffect, useReducer, useState } from "preact/hooks";
import { useAction, useMayWrite } from "./acting.ts";
import type { Message, Rendering, ToolCall, ToolResult, Turn } from "./api_types.ts";
import { Artifact, MediaPart } from "./artifact.tsx";
import { Fold } from "./fold.tsx";
import { bytes, exactly, short, when } from "./format.ts";
import { ALIVE_MS, type Answer, isAlive } from "./history.ts";
import { languageOf } from "./highlight.ts";
import { type Level, LEVELS } from "./levels.ts";
import { Code, Markdown } from "./markdown_view.tsx";
import { memo } from "./memo.ts";
import { turnHash } from "./router.ts";
import { sync } from "./sync.ts";
import * as texts from "./texts.ts";

type Part = NonNullable<Message["parts"]>[number];

export interface TurnProps {
  session: string;
  number: number;
  turn: Turn | undefined;
  answer: Answer | undefined;
  failure: string | undefined;
  isUndone: boolean;
  isChosen: boolean;
  isNewest: boolean;
  level: Level;
  rendering: Rendering | undefined;
  onLevel: (number: number, level: Level) => void;
  onChoose: (number: number) => void;
}

export const TurnView = memo(function TurnView(props: TurnProps) {
  const { session, number, turn, answer, isUndone, isChosen } = props;
  const status = isUndone ? "undone" : turn?.status;
  const says = status === "undone" || status === "forgotten" ? status : "";
  return (
    <article
      class={`turn ${says} ${isChosen ? "chosen" : ""}`}
      aria-labelledby={`T-${number}`}
      data-turn={number}
      data-version={turn?.version}
      onClick={() => props.onChoose(number)}
    >
      <div class="about">
        <a id={`T-${number}`} class="id" href={turnHash(session, number)} title={texts.turns.link(number)}>
          T-{number}
        </a>
        {turn && <Facts turn={turn} isUndone={isUndone} />}
        {turn && !says && <LevelChoice number={number} level={props.level} onLevel={props.onLevel} />}
      </div>
      {status === "forgotten" ? <p class="nothing">{texts.turns.forgotten}</p> : <Content {...props} />}
      {answer && <AnswerView key={answer.turn} answer={answer} session={session} />}
      {props.failure && !answer && <Failure {...props} />}
    </article>
  );
});

function Content({ turn, isUndone, level, rendering }: TurnProps) {
  if (!turn) return null;
  if (isUndone) return <Fold label={texts.turns.undone}>{() => <Said turn={turn} />}</Fold>;
  // As it was said until the level is there: nothing flickers.
  if (level === "R" || !rendering) return <Said turn={turn} />;
  return (
    <div class="rendering" data-level={level}>
      <pre>{rendering.text || texts.turns.missing}</pre>
      {rendering.text && <p class="about">{texts.turns.tokens(short(rendering.tokens))}</p>}
    </div>
  );
}

function Facts({ turn, isUndone }: { turn: Turn; isUndone: boolean }) {
  const counts = turn.rounds.map((round) => round.tokens);
  const tokens = counts.includes(null) ? null : counts.reduce<number>((sum, count) => sum + (count ?? 0), 0);
  const masked = Object.values(turn.masked ?? {}).reduce((sum, count) => sum + count, 0);
  const status = isUndone ? texts.turns.undone : turn.status === "open" ? texts.turns.open : "";
  return (
    <span class="facts">
      <time dateTime={new Date(turn.started / 1_000).toISOString()} title={exactly(turn.started)}>
        {when(turn.started)}
      </time>
      {tokens !== null && tokens > 0 && <span>{texts.turns.tokens(short(tokens))}</span>}
      {status && <span>{status}</span>}
      {masked > 0 && <span>{texts.turns.masked(masked)}</span>}
    </span>
  );
}

function LevelChoice(props: { number: number; level: Level; onLevel: TurnProps["onLevel"] }) {
  const { number, level, onLevel } = props;
  return (
    <span class="levels" role="group" aria-label={texts.turns.levelOf(number)}>
      {LEVELS.map((each) => (
        <button key={each} aria-pressed={each === level} title={texts.levelNames[each]} onClick={() => onLevel(number, each)}>
          {each}
        </button>
      ))}
    </span>
  );
}

/** The messages of a turn, with each result at its call. */
const Said = memo(function Said({ turn }: { turn: Turn }) {
  const messages = turn.rounds.flatMap((round) => round.messages);
  const results = new Map<string, ToolResult>();
  for (const message of messages) {
    for (const part of message.parts ?? []) if (part.kind === "result") results.set(part.call, part);
  }
  const calls = new Set(messages.flatMap((message) => (message.parts ?? []).map((part) => (part.kind === "call" ? part.id : ""))));
  return (
    <>
      {messages.map((message, at) => (
        <MessageView key={at} message={message} results={results} calls={calls} />
      ))}
    </>
  );
});

function MessageView(props: { message: Message; results: Map<string, ToolResult>; calls: Set<string> }) {
  const { message, results, calls } = props;
  const parts = message.parts ?? [];
  const shown = parts.map((part, at) => {
    if (part.kind === "result") return calls.has(part.call) ? null : <ResultView key={at} result={part} />;
    if (part.kind === "call") return <CallView key={at} call={part} result={results.get(part.id)} />;
    return <PartView key={at} part={part} />;
  });
  if (shown.every((each) => each === null)) return null;
  switch (message.role) {
    case "user":
      if (message.injected) return <Fold label={texts.turns.injected}>{() => shown}</Fold>;
      return <div class="prompt">{shown}</div>;
    case "system":
    case "developer":
      return <Fold label={texts.turns.system}>{() => shown}</Fold>;
    case "event":
      return (
        <div class="event">
          {texts.turns.event} <code>{message.name}</code> {shown}
        </div>
      );
    case "assistant":
      return (
        <div class="reply">
          {shown}
          {message.partial && <p class="about">{texts.turns.partial}</p>}
        </div>
      );
    default:
      return <>{shown}</>;
  }
}

export function PartView({ part }: { part: Part }): ComponentChildren {
  switch (part.kind) {
    case "text":
      return part.text ? <Markdown text={part.text} /> : null;
    case "reasoning": {
      const text = part.text || (part.summary ?? []).join("\n\n");
      return text ? (
        <Fold class="reasoning" label={texts.turns.reasoning}>
          {() => <Markdown text={text} />}
        </Fold>
      ) : null;
    }
    case "call":
      return <CallView call={part} result={undefined} />;
    case "result":
      return <ResultView result={part} />;
    case "media":
      return <MediaPart media={part} />;
    case "reference":
      return <Artifact pointer={part} />;
    case "unknown":
      return <Fold label={part.wire}>{() => <Code text={JSON.stringify(part.data, null, 2)} language="json" />}</Fold>;
  }
}

const CallView = memo(function CallView({ call, result }: { call: ToolCall; result: ToolResult | undefined }) {
  const given = call.arguments ?? "";
  const size = (result?.content ?? []).reduce((sum, part) => sum + sizeOf(part), 0);
  const label = (
    <>
      <span class="tool">{call.name || texts.turns.tool}</span> <span class="given">{oneLine(given)}</span>
      <span class="size">{result ? (result.is_error ? texts.turns.failedResult : bytes(size)) : texts.turns.noResult}</span>
    </>
  );
  return (
    <Fold class={result?.is_error ? "call failed" : "call"} label={label}>
      {() => (
        <>
          {given && <Code text={pretty(given)} language="json" />}
          {call.reference && <Artifact pointer={call.reference} />}
          {result && <Results result={result} language={languageOf(fileIn(given))} />}
        </>
      )}
    </Fold>
  );
});

function ResultView({ result }: { result: ToolResult }) {
  const label = (
    <>
      <span class="tool">{result.name || texts.turns.result}</span>
    </>
  );
  return (
    <Fold class={result.is_error ? "call failed" : "call"} label={label}>
      {() => <Results result={result} language="" />}
    </Fold>
  );
}

function Results({ result, language }: { result: ToolResult; language: string }) {
  return (
    <>
      {(result.content ?? []).map((part, at) =>
        part.kind === "text" ? <Code key={at} text={part.text} language={language} numbered /> : <PartView key={at} part={part} />,
      )}
    </>
  );
}

function sizeOf(part: NonNullable<ToolResult["content"]>[number]): number {
  if (part.kind === "text") return part.text.length;
  return part.kind === "reference" || part.kind === "media" ? (part.size ?? 0) : 0;
}

const oneLine = (text: string): string => text.slice(0, 200).replace(/\s+/g, " ");

function pretty(given: string): string {
  try {
    return JSON.stringify(JSON.parse(given), null, 2);
  } catch {
    return given;
  }
}

/** The file that a call is about, for the colours of what it brought. */
const fileIn = (given: string): string => /"(?:file_?(?:path|name)?|path)"\s*:\s*"([^"]+)"/.exec(given)?.[1] ?? "";

/** An answer that arrives, with what its writer does. */
function AnswerView({ answer, session }: { answer: Answer; session: string }) {
  const [, look] = useReducer((count: number) => count + 1, 0);
  useEffect(() => {
    const timer = setTimeout(() => look(0), Math.max(answer.alive + ALIVE_MS - Date.now(), 0) + 50);
    return () => clearTimeout(timer);
  }, [answer.alive]);
  const alive = isAlive(answer, Date.now());
  return (
    <div class="reply arriving" aria-busy={alive}>
      {(answer.message.parts ?? []).map((part, at) => (
        <PartView key={at} part={part} />
      ))}
      <p class={alive ? "about typing" : "about stopped"} title={alive ? undefined : texts.turns.stoppedHint}>
        <span role="status">{alive ? texts.turns.typing : texts.turns.stopped}</span>
        {alive ? <Stop session={session} /> : <Again session={session} number={answer.turn} />}
      </p>
    </div>
  );
}

/** What arrived of it is kept. */
function Stop({ session }: { session: string }) {
  const mayWrite = useMayWrite();
  const { run, error } = useAction();
  const [isElsewhere, setElsewhere] = useState(false);
  if (!mayWrite) return null;
  const stop = async () => setElsewhere(!(await sync.outbox.stop(session)));
  return (
    <>
      <button class="quiet stop" onClick={() => void run(stop)}>
        {texts.turns.stop}
      </button>
      {(error || isElsewhere) && <span role="alert">{error || texts.turns.notStopped}</span>}
    </>
  );
}

function Failure({ failure, session, number }: TurnProps) {
  return (
    <p class="error" role="alert">
      {failure} <Again session={session} number={number} />
    </p>
  );
}

const Again = ({ session, number }: { session: string; number: number }) =>
  useMayWrite() ? (
    <button class="quiet" onClick={() => void sync.outbox.answerAgain(session, number)}>
      {texts.turns.answerAgain}
    </button>
  ) : null;

// A request's body, of any of the three APIs, as text to read and to compare. Pure.

interface Item {
  type?: string;
  role?: string;
  name?: string;
  text?: string;
  content?: unknown;
  input?: unknown;
  arguments?: unknown;
  output?: unknown;
  tool_calls?: { function?: { name?: string; arguments?: unknown } }[];
  tool_call_id?: string;
}

export interface Said {
  role: string;
  text: string;
}

/** System text and messages, in the order in which they are sent. */
export function promptParts(body: Record<string, unknown>): Said[] {
  const system = textOf(body["system"] ?? body["instructions"] ?? "");
  const items = (body["messages"] ?? body["input"] ?? []) as Item[];
  const tools = (body["tools"] ?? []) as unknown[];
  const found: Said[] = items.map((item) => ({ role: item.role ?? item.type ?? "", text: textOf(item) }));
  if (system) found.unshift({ role: "system", text: system });
  if (tools.length) found.push({ role: "tools", text: tools.map((each) => JSON.stringify(each)).join("\n") });
  return found;
}

export const promptText = (body: Record<string, unknown>): string =>
  promptParts(body)
    .map(({ role, text }) => `[${role}]\n${text}`)
    .join("\n");

function textOf(value: unknown): string {
  if (typeof value === "string") return value;
  if (Array.isArray(value)) return value.map(textOf).join("\n");
  if (typeof value !== "object" || value === null) return "";
  const item = value as Item;
  if (typeof item.text === "string") return item.text;
  if (item.type === "tool_use" || item.type === "function_call") return callText(item.name, item.input ?? item.arguments);
  const calls = (item.tool_calls ?? []).map((each) => callText(each.function?.name, each.function?.arguments));
  const content = item.content ?? item.output;
  if (content === undefined && !calls.length) return JSON.stringify(value);
  const said = textOf(content);
  return [...(said ? [said] : []), ...calls].join("\n");
}

const callText = (name: string | undefined, given: unknown): string =>
  `${name ?? ""}(${typeof given === "string" ? given : JSON.stringify(given)})`;

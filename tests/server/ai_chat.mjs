// Drives the AI SDK's chat, which useChat is made of, against a server:
//   node ai_chat.mjs API TOKEN STEPS, in a folder where `ai` is installed.
// Prints one JSON object: the messages at the end, errors, data parts and raw chunk types.
import { createRequire } from "node:module";
import { pathToFileURL } from "node:url";

const require = createRequire(`${process.cwd()}/package.json`);
const { AbstractChat, DefaultChatTransport, readUIMessageStream, lastAssistantMessageIsCompleteWithToolCalls } =
  await import(pathToFileURL(require.resolve("ai")).href);

const [api, token, given] = process.argv.slice(2);
const { steps, body } = JSON.parse(given);
const transport = new DefaultChatTransport({ api, headers: { authorization: `Bearer ${token}` }, body });
const errors = [], data = [], notes = [];

class State {
  status = "ready";
  error = undefined;
  messages = [];
  pushMessage = (message) => { this.messages = [...this.messages, message]; };
  popMessage = () => { this.messages = this.messages.slice(0, -1); };
  replaceMessage = (at, message) => { this.messages = this.messages.with(at, message); };
  snapshot = structuredClone;
}

class Chat extends AbstractChat {}

const chat = new Chat({
  id: "chat-1",
  state: new State(),
  transport,
  onError: (error) => errors.push(error.message),
  onData: (part) => data.push(part.type),
  sendAutomaticallyWhen: lastAssistantMessageIsCompleteWithToolCalls,
});

const hasWords = () => chat.lastMessage?.role === "assistant" && chat.lastMessage.parts.some((p) => p.type === "text" && p.text);
const until = async (condition) => { while (!condition()) await new Promise((go) => setTimeout(go, 2)); };

for (const [what, ...args] of steps) {
  if (what === "send") await chat.sendMessage({ text: args[0] });
  else if (what === "edit") await chat.sendMessage({ text: args[1], messageId: chat.messages[args[0]].id });
  else if (what === "regenerate") await chat.regenerate();
  else if (what === "tool") {
    await chat.addToolOutput({ tool: args[0], toolCallId: args[1], output: args[2] });
    await until(() => chat.status === "ready" && hasWords());
  } else if (what === "leave") {  // in the middle of an answer
    const sending = chat.sendMessage({ text: args[0] });
    await until(hasWords);
    await chat.stop();
    await sending;
    notes.push(chat.lastMessage.parts.length);
  } else if (what === "resume") {  // as a page that was loaded again
    chat.messages = chat.messages.slice(0, -1);
    await chat.resumeStream();
  } else if (what === "read") {  // without a chat around it
    const message = { id: "u", role: "user", parts: [{ type: "text", text: args[0] }] };
    const stream = await transport.sendMessages({ chatId: "chat-2", messages: [message], trigger: "submit-message" });
    let last;
    for await (const each of readUIMessageStream({ stream, onError: (error) => errors.push(error.message) })) last = each;
    notes.push(last);
  }
}
console.log(JSON.stringify({ messages: chat.messages, status: chat.status, errors, data, notes }));

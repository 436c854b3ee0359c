// The conversation: its messages, and the one answer that may be on its way.
import { batch, signal } from "./lib.js";
import { perFrame } from "./frames.js";
import { chosenSettings, settings } from "./settings.js";
import { kept, keep } from "./storage.js";
import { cancel, streamChat } from "./stream.js";

/** One turn. `state`: waiting, streaming, done, stopped or failed; only the live answer ever changes. */
class Message {
  static count = 0;

  constructor(role, text = "", state = "done", timings = null) {
    this.id = Message.count += 1;
    this.role = role;
    this.text = signal(text);
    this.state = signal(state);
    this.timings = signal(timings);
    this.problem = signal(null);
  }

  get plain() {
    const [text, state] = [this.text.value, this.state.value];
    return { role: this.role, text, state, timings: this.timings.value };
  }
}

const saved = kept(sessionStorage, "messages", []);

export const messages = signal(saved.map((m) => new Message(m.role, m.text, m.state, m.timings)));
/** The answer on its way with what ends it, or null. */
export const live = signal(null);

/** The body that asks for the answer to the present conversation. */
export function chatBody(asked = messages.value) {
  const system = settings.value.system?.trim();
  const turns = asked.filter((m) => m.text.value).map((m) => ({ role: m.role, content: m.text.value }));
  const opening = system ? [{ role: "system", content: system }] : [];
  const { model, ...sampling } = chosenSettings();
  return { model, messages: [...opening, ...turns], ...sampling };
}

export function send(text) {
  messages.value = [...messages.value, new Message("user", text)];
  return answer();
}

/** Ask again for the last answer. */
export function regenerate() {
  const kept = messages.value.at(-1)?.role === "assistant" ? messages.value.slice(0, -1) : messages.value;
  messages.value = kept;
  return answer();
}

export function stop() {
  const current = live.value;
  if (!current) return;
  if (current.requestId) cancel(current.requestId).catch(() => {});
  current.aborter.abort();
}

export function clear() {
  stop();
  messages.value = [];
  save();
}

async function answer() {
  const body = chatBody();
  const message = new Message("assistant", "", "waiting");
  const current = { message, aborter: new AbortController(), requestId: null };
  batch(() => {
    messages.value = [...messages.value, message];
    live.value = current;
  });
  await follow(body, current);
  if (live.value === current) live.value = null;
  save();
}

async function follow(body, current) {
  const { message } = current;
  let pending = "";
  const frames = perFrame(() => {
    message.text.value += pending;
    pending = "";
  });
  try {
    const { timings } = await streamChat(body, {
      signal: current.aborter.signal,
      onId: (id) => { current.requestId = id; message.state.value = "streaming"; },
      onText: (text) => { pending += text; frames.ask(); },
    });
    frames.now();
    batch(() => { message.timings.value = timings; message.state.value = "done"; });
  } catch (error) {
    frames.now();
    ended(message, error);
  }
}

function ended(message, error) {
  const isStopped = error.name === "AbortError";
  message.problem.value = isStopped ? null : error;
  message.state.value = isStopped ? "stopped" : "failed";
}

function save() {
  keep(sessionStorage, "messages", messages.value.map((message) => message.plain));
}

// A chat completion as it is made: server-sent events, read line by line.
import { call, post, Problem } from "./api.js";

const BROKEN = "broken_off";
/** What a server says while it can't be asked: it will come back, or another does. */
const AWAY = new Set(["unreachable", "shutting_down", "store_unavailable"]);

/** How often a lost stream is taken up again, and how long it waits for a server in between, in ms. */
const ATTEMPTS = 60;
const PAUSE_MS = 500;

/**
 * Post a conversation and tell of what comes: `onId(id)` once, `onText(text)` for each piece. A stream that
 * breaks off, as when its API process dies, goes on where it was, from whichever process answers.
 * Returns `{ reason, timings }`. Throws Problem, or AbortError once `signal` is aborted.
 */
export async function streamChat(body, { signal, onId, onText }) {
  const position = { id: null, after: "0" };
  let response = await post("v1/chat/completions", { ...body, stream: true }, signal);
  for (;;) {
    try {
      return await read(response, position, onId, onText);
    } catch (error) {
      if (error.code !== BROKEN || !position.id) throw error;
    }
    response = await takenUp(position, signal);
  }
}

async function read(response, position, onId, onText) {
  for await (const { id, data } of events(response.body)) {
    if (data === "[DONE]") break;
    const event = JSON.parse(data);
    if (event.error) throw new Problem(event.error.message, event.error.code);
    if (!position.id) onId(event.id);
    position.id = event.id;
    position.after = id;
    const choice = event.choices[0];
    if (choice?.delta.content) onText(choice.delta.content);
    if (choice?.finish_reason) return { reason: choice.finish_reason, timings: event.timings };
  }
  throw broken();
}

async function takenUp({ id, after }, signal) {
  for (let left = ATTEMPTS; ; left -= 1) {
    try {
      return await call(`v1/requests/${id}/events`, { headers: { "Last-Event-ID": after }, signal });
    } catch (error) {
      if (!AWAY.has(error.code) || !left) throw error;
    }
    await new Promise((done) => { setTimeout(done, PAUSE_MS); });
  }
}

/** End a request wherever it is; its slot is free within a step. */
export async function cancel(id) {
  await call(`v1/requests/${id}`, { method: "DELETE" });
}

async function* events(stream) {
  let id = "0";
  for await (const line of lines(stream)) {
    if (line.startsWith("id: ")) id = line.slice(4);
    if (line.startsWith("data: ")) yield { id, data: line.slice(6) };
  }
}

async function* lines(stream) {
  const reader = stream.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  try {
    for (;;) {
      const { value, done } = await reader.read();
      if (done) return;
      const found = (rest + value).split("\n");
      rest = found.pop();
      yield* found;
    }
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw broken();
  } finally {
    reader.cancel().catch(() => {});
  }
}

function broken() {
  return new Problem("The connection was lost before the answer's end.", BROKEN);
}

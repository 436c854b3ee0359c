// A chat completion as it is made: server-sent events, read line by line.
import { call, post, Problem } from "./api.js";

/**
 * Post a conversation and tell of what comes: `onId(id)` once, `onText(text)` for each piece.
 * Returns `{ reason, timings }`. Throws Problem, or AbortError once `signal` is aborted.
 */
export async function streamChat(body, { signal, onId, onText }) {
  const response = await post("v1/chat/completions", { ...body, stream: true }, signal);
  let isNamed = false;
  for await (const data of eventData(response.body)) {
    if (data === "[DONE]") break;
    const event = JSON.parse(data);
    if (event.error) throw new Problem(event.error.message, event.error.code);
    if (!isNamed) onId(event.id);
    isNamed = true;
    const choice = event.choices[0];
    if (choice?.delta.content) onText(choice.delta.content);
    if (choice?.finish_reason) return { reason: choice.finish_reason, timings: event.timings };
  }
  throw new Problem("The connection was lost before the answer's end.", "broken_off");
}

/** End a request wherever it is; its slot is free within a step. */
export async function cancel(id) {
  await call(`v1/requests/${id}`, { method: "DELETE" });
}

async function* eventData(stream) {
  for await (const line of lines(stream)) {
    if (line.startsWith("data: ")) yield line.slice(6);
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
    throw new Problem("The connection was lost before the answer's end.", "broken_off");
  } finally {
    reader.cancel().catch(() => {});
  }
}

// One message of the conversation.
import { live, regenerate } from "./conversation.js";
import { effect, html, useEffect, useRef } from "./lib.js";
import { LiveMarkdown } from "./markdown.js";
import { timingsText } from "./units.js";

const WHO = { user: "You", assistant: "Answer", system: "System" };

// The text goes into the page by an effect, past the components: a token makes no component work.
function Markdown({ text }) {
  const node = useRef(null);
  useEffect(() => {
    const shown = new LiveMarkdown(node.current);
    return effect(() => shown.show(text.value));
  }, [text]);
  return html`<div class="text markdown" ref=${node}></div>`;
}

function Problem({ problem }) {
  const again = problem.retryAfterS ? ` A place is likely free in ${problem.retryAfterS} s.` : "";
  return html`<p class="problem" role="alert">${problem.message}${again}</p>`;
}

function Foot({ message, isLast }) {
  const state = message.state.value;
  const isOver = state !== "waiting" && state !== "streaming";
  return html`
    <footer>
      ${state === "waiting" && html`<span class="hint">Waiting for the first token …</span>`}
      ${state === "stopped" && html`<span class="hint">Stopped.</span>`}
      ${message.timings.value && html`<span class="timings">${timingsText(message.timings.value)}</span>`}
      ${isOver && isLast && !live.value && html`
        <button type="button" class="quiet" onClick=${regenerate}>Regenerate</button>`}
    </footer>`;
}

export function Message({ message, isLast }) {
  const isAnswer = message.role === "assistant";
  const problem = message.problem.value;
  return html`
    <article class=${`message ${message.role}`} aria-busy=${message.state.value === "streaming"}>
      <h2>${WHO[message.role]}</h2>
      ${isAnswer ? html`<${Markdown} text=${message.text} />` : html`<p class="text">${message.text}</p>`}
      ${problem && html`<${Problem} problem=${problem} />`}
      ${isAnswer && html`<${Foot} message=${message} isLast=${isLast} />`}
    </article>`;
}

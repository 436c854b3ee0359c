// The playground: settings, the conversation, and the field for the next message.
import { CopyButtons } from "./copy.js";
import { clear, live, messages, send, stop } from "./conversation.js";
import { html, signal, useEffect, useRef } from "./lib.js";
import { Message } from "./message.js";
import { loadModels, models, SettingsForm } from "./settings.js";

const RETRY_MS = 2000;

const problem = signal(null);

async function keepAskingForModels() {
  try {
    await loadModels();
    problem.value = null;
  } catch (error) {
    problem.value = error;
  }
  if (!models.value.length) setTimeout(keepAskingForModels, RETRY_MS);
}

// The log is laid out from its end, where its scroll position is 0; above that it is negative.
const AWAY_PX = 80;
const log = { current: null };
const isAway = signal(false);

function Conversation() {
  const all = messages.value;
  const onScroll = () => { isAway.value = log.current.scrollTop < -AWAY_PX; };
  return html`
    <section class="log" tabindex="0" aria-label="Conversation" ref=${log} onScroll=${onScroll}>
      <div>
        ${!all.length && html`<p class="hint empty">Ask something; the answer comes token by token.</p>`}
        ${all.map((message, index) =>
          html`<${Message} key=${message.id} message=${message} isLast=${index === all.length - 1} />`)}
      </div>
    </section>`;
}

// Said to those who hear the page, instead of every token.
function Announcer() {
  const last = messages.value.at(-1);
  const told = { waiting: "Waiting for the answer", streaming: "Answering", done: "The answer is complete", stopped: "Stopped" };
  return html`<p class="unseen" role="status">${last?.role === "assistant" ? told[last.state.value] : ""}</p>`;
}

function JumpToLatest() {
  if (!isAway.value) return null;
  return html`<button type="button" class="latest" onClick=${() => log.current.scrollTo(0, 0)}>Jump to latest</button>`;
}

function Composer() {
  const field = useRef(null);
  useEffect(() => field.current.focus(), []);
  const submit = (event) => {
    event?.preventDefault();
    const text = field.current.value.trim();
    if (!text || live.value) return;
    field.current.value = "";
    send(text);
  };
  const onKeyDown = (event) => {
    if (event.key === "Enter" && !event.shiftKey && !event.isComposing) submit(event);
  };
  return html`
    <form class="composer" onSubmit=${submit}>
      <${JumpToLatest} />
      <label class="unseen" for="message">Message</label>
      <textarea id="message" ref=${field} rows="3" placeholder="Message: Enter sends, Shift+Enter starts a new line"
        onKeyDown=${onKeyDown}></textarea>
      <div class="row">
        ${live.value
          ? html`<button type="button" class="primary" onClick=${stop}>Stop</button>`
          : html`<button type="submit" class="primary">Send</button>`}
        <button type="button" class="quiet" onClick=${clear}>New conversation</button>
        <${CopyButtons} />
      </div>
    </form>`;
}

export function Playground() {
  useEffect(() => {
    keepAskingForModels();
    const onKey = (event) => { if (event.key === "Escape") stop(); };
    addEventListener("keydown", onKey);
    return () => removeEventListener("keydown", onKey);
  }, []);
  const isNarrow = matchMedia("(max-width: 50rem)").matches;
  return html`
    <details class="side" open=${!isNarrow}>
      <summary>Settings</summary>
      <${SettingsForm} />
    </details>
    <div class="talk">
      ${problem.value && html`<p class="problem" role="alert">${problem.value.message}</p>`}
      <${Conversation} />
      <${Announcer} />
      <${Composer} />
    </div>`;
}

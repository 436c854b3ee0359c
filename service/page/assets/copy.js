// The present request as curl or Python, on the clipboard, or to copy by hand where there is none.
import { address } from "./api.js";
import { chatBody } from "./conversation.js";
import { key } from "./key.js";
import { html, signal, useEffect, useRef } from "./lib.js";
import { asCurl, asPython } from "./snippets.js";

const snippet = signal(null);
const copied = signal("");

function made(kind) {
  const hasKey = Boolean(key.value);
  const body = chatBody();
  return kind === "curl"
    ? asCurl(address("v1/chat/completions").href, body, hasKey)
    : asPython(address("v1").href, body, hasKey);
}

async function copy(kind) {
  const text = made(kind);
  try {
    await navigator.clipboard.writeText(text);
    copied.value = kind;
  } catch { // no permission, or a page that didn't come over https
    snippet.value = text;
  }
}

export function CopyButtons() {
  return html`
    <button type="button" class="quiet" onClick=${() => copy("curl")}>Copy as curl</button>
    <button type="button" class="quiet" onClick=${() => copy("Python")}>Copy as Python</button>
    <span class="hint" role="status">${copied.value && `Copied as ${copied.value}.`}</span>`;
}

export function SnippetDialog() {
  const dialog = useRef(null);
  const text = snippet.value;
  useEffect(() => { if (text !== null) dialog.current.showModal(); }, [text]);
  return html`
    <dialog ref=${dialog} class="wide" aria-label="The request as text" onClose=${() => { snippet.value = null; }}>
      <label>Copy this <textarea readonly rows="16" value=${text ?? ""}></textarea></label>
      <button type="button" onClick=${() => dialog.current.close()}>Close</button>
    </dialog>`;
}

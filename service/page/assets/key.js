// The API key: asked for when the server wants one, kept until the browser's tab is closed.
import { html, signal, useEffect, useRef } from "./lib.js";
import { kept, keep } from "./storage.js";

export const key = signal(kept(sessionStorage, "key", ""));

const asking = signal(null);

/** Ask for a key; all who ask at the same time get the same answer: whether there is one to try. */
export function askForKey() {
  asking.value ??= promised();
  return asking.value.promise;
}

function promised() {
  let resolve;
  const promise = new Promise((done) => { resolve = done; });
  return { promise, resolve };
}

function answer(value) {
  const asked = asking.value;
  if (!asked) return;
  if (value) {
    key.value = value;
    keep(sessionStorage, "key", value);
  }
  asking.value = null;
  asked.resolve(Boolean(value));
}

export function KeyDialog() {
  const dialog = useRef(null);
  const field = useRef(null);
  const isAsked = asking.value !== null;
  useEffect(() => { if (isAsked) dialog.current.showModal(); else dialog.current.close(); }, [isAsked]);
  const submit = (event) => {
    event.preventDefault();
    answer(field.current.value.trim());
    field.current.value = "";
  };
  return html`
    <dialog ref=${dialog} aria-labelledby="key-title" onClose=${() => answer("")}>
      <form onSubmit=${submit}>
        <h2 id="key-title">This server wants an API key</h2>
        <label>API key <input ref=${field} type="password" autocomplete="off" required /></label>
        <div class="row">
          <button type="submit" class="primary">Use it</button>
          <button type="button" onClick=${() => dialog.current.close()}>Cancel</button>
        </div>
        <p class="hint">It is kept until this tab is closed.</p>
      </form>
    </dialog>`;
}

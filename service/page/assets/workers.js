// The workers with their children and slots, those that have just gone included.
import { html } from "./lib.js";
import { duration } from "./units.js";
import { history } from "./watch.js";

function Child({ seen, now }) {
  const { child, since, lastSeen, isAlive } = seen;
  const busy = isAlive ? child.busy : 0;
  const told = isAlive
    ? `${busy} of ${child.slots} slots busy`
    : `gone, last seen ${duration((now - lastSeen) * 1000)} ago`;
  return html`
    <li class=${isAlive ? "child" : "child gone"}>
      <span class="name">child ${child.pid}</span>
      <span class="pips" aria-hidden="true">
        ${Array.from({ length: child.slots }, (_, slot) => html`<i class=${slot < busy ? "pip busy" : "pip"}></i>`)}
      </span>
      <span class="told">${told}</span>
      <span class="hint">${child.model} · ${child.n_ctx} tokens a slot · seen for ${duration((now - since) * 1000)}</span>
    </li>`;
}

export function Workers() {
  const { children, snapshot } = history.value;
  const byWorker = Map.groupBy(children.values(), (seen) => seen.child.worker);
  const names = [...byWorker.keys()].sort();
  return html`
    <section aria-labelledby="workers">
      <h2 id="workers">Workers</h2>
      ${!names.length && html`<p class="hint">No worker holds a model. Requests wait until one comes.</p>`}
      ${names.map((name) => html`
        <h3 key=${name}>${name}</h3>
        <ul class="children">
          ${byWorker.get(name).map((seen) => html`<${Child} key=${seen.child.id} seen=${seen} now=${snapshot.time} />`)}
        </ul>`)}
    </section>`;
}

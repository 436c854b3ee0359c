// What is asked beside the messages: the model, the system prompt and the sampling; kept by the browser.
import { getJson } from "./api.js";
import { effect, html, signal } from "./lib.js";
import { kept, keep } from "./storage.js";

/** Name, what people call it, what the field may hold, and the server's own default. */
const NUMBERS = [
  ["temperature", "Temperature", { min: 0, max: 2, step: 0.1 }, "0.8"],
  ["top_p", "Top-p", { min: 0, max: 1, step: 0.05 }, "0.95"],
  ["top_k", "Top-k", { min: 0, max: 1000000, step: 1 }, "40"],
  ["min_p", "Min-p", { min: 0, max: 1, step: 0.01 }, "0.05"],
  ["repeat_penalty", "Repeat penalty", { min: 0.1, max: 10, step: 0.1 }, "1"],
  ["presence_penalty", "Presence penalty", { min: -2, max: 2, step: 0.1 }, "0"],
  ["frequency_penalty", "Frequency penalty", { min: -2, max: 2, step: 0.1 }, "0"],
  ["max_tokens", "Max tokens", { min: 1, max: 1000000, step: 1 }, "to the end"],
  ["seed", "Seed", { min: -1, step: 1 }, "random"],
];

export const models = signal([]);
export const settings = signal(kept(localStorage, "settings", {}));

effect(() => keep(localStorage, "settings", settings.value));

/** The body's fields that are set; the server has a default for each that isn't. */
export function chosenSettings() {
  const { model, stop, priority, ignoreEos } = settings.value;
  const chosen = { model: models.value.includes(model) ? model : models.value[0] };
  for (const [name] of NUMBERS) {
    const value = Number.parseFloat(settings.value[name]);
    if (Number.isFinite(value)) chosen[name] = value;
  }
  const stops = (stop ?? "").split("\n").filter(Boolean);
  if (stops.length) chosen.stop = stops;
  if (priority === "batch") chosen.priority = priority;
  if (ignoreEos) chosen.ignore_eos = true;
  return chosen;
}

/** Ask which models there are. Throws Problem. */
export async function loadModels() {
  models.value = (await getJson("v1/models")).data.map((model) => model.id);
}

function set(name) {
  return (event) => { settings.value = { ...settings.value, [name]: event.target.value }; };
}

function setIgnoreEos(event) {
  settings.value = { ...settings.value, ignoreEos: event.target.checked };
}

function NumberField({ name, label, limits, fallback }) {
  return html`
    <label>${label}
      <input type="number" inputmode="decimal" name=${name} ...${limits} placeholder=${fallback}
        value=${settings.value[name] ?? ""} onInput=${set(name)} />
    </label>`;
}

function Choices({ name, label, values, value }) {
  return html`
    <label>${label}
      <select name=${name} value=${value} onChange=${set(name)}>
        ${values.map((each) => html`<option value=${each}>${each}</option>`)}
      </select>
    </label>`;
}

export function SettingsForm() {
  const { model, priority, system, stop, ignoreEos } = settings.value;
  return html`
    <form class="settings" aria-label="Settings" onSubmit=${(event) => event.preventDefault()}>
      <${Choices} name="model" label="Model" values=${models.value} value=${model ?? models.value[0]} />
      <label>System prompt
        <textarea name="system" rows="3" value=${system ?? ""} onInput=${set("system")}></textarea>
      </label>
      <div class="grid">
        ${NUMBERS.map(([name, label, limits, fallback]) =>
          html`<${NumberField} key=${name} ...${{ name, label, limits, fallback }} />`)}
        <${Choices} name="priority" label="Priority" values=${["interactive", "batch"]}
          value=${priority ?? "interactive"} />
      </div>
      <label>Stop at, one a line
        <textarea name="stop" rows="2" value=${stop ?? ""} onInput=${set("stop")}></textarea>
      </label>
      <label class="check">
        <input type="checkbox" checked=${ignoreEos ?? false} onChange=${setIgnoreEos} />
        Go on past the end of the text
      </label>
      <button type="button" onClick=${() => { settings.value = {}; }}>Defaults</button>
    </form>`;
}

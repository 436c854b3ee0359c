// The dashboard: what is now, how it came to that, who works, and what finished last.
import { Chart } from "./chart.js";
import { html, useEffect } from "./lib.js";
import { Recent } from "./recent.js";
import { count, duration, rate } from "./units.js";
import { history, problem, watch } from "./watch.js";
import { Workers } from "./workers.js";

const CHARTS = [
  ["Tokens a second", rate, [["tok/s", "tokensPerS", "decode"]]],
  ["Requests", count, [["waiting", "waiting", "queue"], ["running", "running", "decode"]]],
  ["Time to first token", duration, [["p50", "ttftP50", "prefill"], ["p95", "ttftP95", "queue"]]],
  ["Between tokens", duration, [["p50", "itlP50", "prefill"], ["p95", "itlP95", "queue"]]],
  ["Slots", count, [["busy", "busy", "decode"], ["all", "slots", "soft"]]],
  ["Refused a second", rate, [["refused", "refusedPerS", "bad"]]],
].map(([title, format, series]) => ({
  title, format, series: series.map(([name, field, colour]) => ({ name, field, colour })),
}));

function Tile({ name, value, extra, meter }) {
  return html`
    <div class="tile">
      <dt>${name}</dt>
      <dd><b>${value}</b> ${extra}
        ${meter && html`<meter min="0" max=${meter[1] || 1} value=${meter[0]} aria-label=${name}></meter>`}
      </dd>
    </div>`;
}

function Tiles() {
  const { samples, snapshot } = history.value;
  const now = samples.at(-1);
  const { refused, requests } = snapshot.totals;
  const total = (counts) => Object.values(counts).reduce((sum, number) => sum + number, 0);
  return html`
    <dl class="tiles">
      <${Tile} name="Waiting" value=${count(now.waiting)} extra=${`of ${count(now.cap)}`} meter=${[now.waiting, now.cap]} />
      <${Tile} name="Running" value=${count(now.running)} extra="requests" />
      <${Tile} name="Slots busy" value=${count(now.busy)} extra=${`of ${count(now.slots)}`} meter=${[now.busy, now.slots]} />
      <${Tile} name="Tokens a second" value=${rate(now.tokensPerS ?? NaN)} extra=${`${count(snapshot.totals.generated_tokens)} in all`} />
      <${Tile} name="First token, p50" value=${duration(now.ttftP50 ?? NaN)} extra=${`p95 ${duration(now.ttftP95 ?? NaN)}`} />
      <${Tile} name="Between tokens, p50" value=${duration(now.itlP50 ?? NaN)} extra=${`p95 ${duration(now.itlP95 ?? NaN)}`} />
      <${Tile} name="Refused" value=${count(total(refused))} extra=${Object.keys(refused).join(", ")} />
      <${Tile} name="Finished" value=${count(total(requests))} extra=${`${count(requests.succeeded ?? 0)} succeeded`} />
    </dl>`;
}

function Models() {
  const { models } = history.value.snapshot;
  if (models.length < 2) return null;
  return html`
    <ul class="models" aria-label="Models">
      ${models.map((each) => html`
        <li><b>${each.id}</b> ${each.waiting} of ${each.cap} waiting, ${each.running} running</li>`)}
    </ul>`;
}

export function Dashboard() {
  useEffect(watch, []);
  const isRead = history.value.snapshot !== null;
  return html`
    <h2 class="unseen">Dashboard</h2>
    ${problem.value && html`<p class="problem" role="alert">${problem.value.message} Asking again …</p>`}
    ${!isRead && !problem.value && html`<p class="hint">Asking the server …</p>`}
    ${isRead && html`
      <${Tiles} />
      <${Models} />
      <div class="charts">${CHARTS.map((chart) => html`<${Chart} key=${chart.title} ...${chart} />`)}</div>
      <p class="hint">Latencies: requests that finished in the last minute. Between tokens: the median of their means,
        the 95th percentile of their 95th percentiles.</p>
      <${Workers} />
      <${Recent} />`}`;
}

// The requests that finished last, with what their time went into.
import { html } from "./lib.js";
import { count, duration } from "./units.js";
import { history } from "./watch.js";

const SHOWN = 50;
const WIDTH = 1000;

/** What a request's time went into, in ms: `other` is what dead attempts cost, and the way between the parts. */
export function phases(request) {
  const total = (request.finished - request.created) * 1000;
  const { queue_ms: queue, prefill_ms: prefill, decode_ms: decode } = request;
  return { queue, other: Math.max(0, total - queue - prefill - decode), prefill, decode };
}

function Timeline({ request, longest }) {
  const parts = phases(request);
  const scale = WIDTH / Math.max(longest, 1);
  const told = Object.entries(parts).map(([name, ms]) => `${name} ${duration(ms)}`).join(", ");
  let left = 0;
  const bars = Object.entries(parts).map(([name, ms]) => {
    const bar = html`<rect class=${name} x=${left} y="0" width=${ms * scale} height="10" />`;
    left += ms * scale;
    return bar;
  });
  return html`
    <svg class="timeline" viewBox=${`0 0 ${WIDTH} 10`} preserveAspectRatio="none" role="img" aria-label=${told}>
      <title>${told}</title>${bars}
    </svg>`;
}

function Row({ request, longest }) {
  const state = request.error ? `${request.state}: ${request.error}` : request.state;
  return html`
    <tr>
      <td class="id" title=${request.id}>${request.id.slice(-8)}</td>
      <td class=${request.state}>${state}</td>
      <td class="number">${count(request.generated_tokens)}</td>
      <td class="line"><${Timeline} request=${request} longest=${longest} /></td>
      <td class="number">${duration(request.ttft_ms || NaN)}</td>
      <td class="number">${duration((request.finished - request.created) * 1000)}</td>
      <td class="number extra">${request.attempts}</td>
      <td class="extra">${request.child?.split("/").at(-1) ?? "–"}</td>
      <td class="extra">${new Date(request.finished * 1000).toLocaleTimeString("en-GB")}</td>
    </tr>`;
}

export function Recent() {
  const shown = (history.value.snapshot?.recent ?? []).slice(0, SHOWN);
  const longest = Math.max(0, ...shown.map((request) => (request.finished - request.created) * 1000));
  return html`
    <section aria-labelledby="recent">
      <h2 id="recent">Recent requests</h2>
      <p class="hint">
        ${["queue", "prefill", "decode", "other"].map((name) => html`
          <span class="key"><i class=${`swatch ${name}`}></i>${name}</span>`)}
        · all on one scale; the longest took ${duration(longest)}
      </p>
      <div class="scroll" tabindex="0" role="region" aria-label="Recent requests">
        <table>
          <thead><tr>
            <th>Request</th><th>State</th><th class="number">Tokens</th><th class="line">Time line</th>
            <th class="number">First token</th><th class="number">In all</th>
            <th class="number extra">Attempts</th><th class="extra">Child</th><th class="extra">Finished</th>
          </tr></thead>
          <tbody>${shown.map((each) => html`<${Row} key=${each.id} request=${each} longest=${longest} />`)}</tbody>
        </table>
      </div>
    </section>`;
}

// One chart over time.
import { effect, html, useEffect, useRef } from "./lib.js";
import { theme } from "./theme.js";
import uPlot from "./vendor/uplot.js";
import { history } from "./watch.js";

const HEIGHT = 150;
/** Seconds that it shows: all there is, between these. */
const LEAST_S = 60;
const MOST_S = 300;

/** `series`: `{ name, field, colour }`, the colour a custom property of the style sheet. */
export function Chart({ title, series, format }) {
  const node = useRef(null);
  useEffect(() => followed(node.current, series, format), []);
  const last = history.value.samples.at(-1);
  const told = series.map(({ name, field }) => `${name} ${format(last?.[field] ?? NaN)}`).join(", ");
  return html`
    <figure class="chart">
      <figcaption>
        <h3>${title}</h3>
        ${series.map(({ name, field, colour }) => html`
          <span class="key"><i class=${`swatch ${colour}`}></i>${name} <b>${format(last?.[field] ?? NaN)}</b></span>`)}
      </figcaption>
      <div ref=${node} role="img" aria-label=${`${title} over the last minutes; now ${told}`}></div>
    </figure>`;
}

// Colours are read once by a chart, so that another theme makes another chart.
function followed(node, series, format) {
  let plot = null;
  const make = () => {
    plot?.destroy();
    plot = new uPlot(options(node, series, format), data(series), node);
  };
  const unfollow = [
    effect(() => { theme.value; make(); }),
    effect(() => { history.value; plot.setData(data(series)); }),
    onChange(matchMedia("(prefers-color-scheme: dark)"), make),
    onResize(node, () => plot.setSize({ width: node.clientWidth, height: HEIGHT })),
  ];
  return () => {
    unfollow.forEach((end) => end());
    plot.destroy();
  };
}

function options(node, series, format) {
  const style = getComputedStyle(node);
  const colour = (name) => resolved(node, style.getPropertyValue(`--${name}`));
  const axis = { stroke: colour("soft"), grid: { stroke: colour("line"), width: 1 }, ticks: { show: false } };
  const lines = series.map((each) => ({ label: each.name, stroke: colour(each.colour), width: 2, spanGaps: false }));
  return {
    width: node.clientWidth || 300,
    height: HEIGHT,
    legend: { show: false },
    cursor: { show: false },
    scales: {
      x: { range: (_, min, max) => [Math.max(max - MOST_S, Math.min(min, max - LEAST_S)), max] },
      y: { range: (_, _min, max) => [0, Math.max(max ?? 0, 1) * 1.1] },
    },
    axes: [{ ...axis, space: 80, size: 26, values: (_, ticks) => ticks.map(clock) }, { ...axis, size: 62, values: (_, ticks) => ticks.map(format) }],
    series: [{}, ...lines],
  };
}

function clock(unixS) {
  return new Date(unixS * 1000).toLocaleTimeString("en-GB");
}

// A custom property's light-dark() is only worked out where it is used.
function resolved(node, value) {
  const probe = document.createElement("i");
  probe.style.color = value;
  node.append(probe);
  const colour = getComputedStyle(probe).color;
  probe.remove();
  return colour;
}

function data(series) {
  const { samples } = history.value;
  return [samples.map((each) => each.time), ...series.map(({ field }) => samples.map((each) => each[field]))];
}

function onChange(query, listener) {
  query.addEventListener("change", listener);
  return () => query.removeEventListener("change", listener);
}

function onResize(node, listener) {
  const observer = new ResizeObserver(listener);
  observer.observe(node);
  return () => observer.disconnect();
}

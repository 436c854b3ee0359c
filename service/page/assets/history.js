// What the dashboard remembers of the snapshots it has seen: rates and percentiles over time. Pure.

/** Seconds of history that are kept, that a rate looks back, and that a percentile does. */
const KEPT_S = 900;
const RATE_S = 5;
const WINDOW_S = 60;
/** Seconds that a child which is gone is still shown. */
const GONE_S = 120;

/** The history after one more snapshot of `/v1/status`. */
export function extended(history, snapshot) {
  const before = isContinued(history, snapshot) ? history : empty();
  const marks = [...before.marks, mark(snapshot)].filter((each) => each.time >= snapshot.time - KEPT_S);
  const sample = { ...counts(snapshot), ...rates(marks), ...latencies(snapshot), time: snapshot.time };
  return {
    snapshot,
    marks,
    samples: [...before.samples, sample].filter((each) => each.time >= snapshot.time - KEPT_S),
    children: childrenSeen(before.children, snapshot),
  };
}

export function empty() {
  return { snapshot: null, marks: [], samples: [], children: new Map() };
}

// A store that was emptied counts from 0 again.
function isContinued({ marks }, snapshot) {
  const last = marks.at(-1);
  return Boolean(last) && snapshot.time >= last.time && snapshot.totals.generated_tokens >= last.tokens;
}

function mark({ time, totals }) {
  return { time, tokens: totals.generated_tokens, refused: sum(Object.values(totals.refused)) };
}

function counts({ models, children }) {
  return {
    waiting: sum(models.map((model) => model.waiting)),
    cap: sum(models.map((model) => model.cap)),
    running: sum(models.map((model) => model.running)),
    slots: sum(children.map((child) => child.slots)),
    busy: sum(children.map((child) => child.busy)),
  };
}

function rates(marks) {
  const last = marks.at(-1);
  const first = marks.find((each) => each.time >= last.time - RATE_S - 0.5);
  const seconds = last.time - first.time;
  if (seconds <= 0) return { tokensPerS: null, refusedPerS: null };
  return {
    tokensPerS: (last.tokens - first.tokens) / seconds,
    refusedPerS: (last.refused - first.refused) / seconds,
  };
}

// Over the requests that finished within the window; each brings its mean and its own 95th percentile.
function latencies({ recent, time }) {
  const fresh = recent.filter((each) => each.finished >= time - WINDOW_S && each.generated_tokens > 0);
  const first = fresh.map((each) => each.ttft_ms).filter((ms) => ms > 0);
  const spaced = fresh.filter((each) => each.itl_ms > 0);
  return {
    ttftP50: percentile(first, 0.5),
    ttftP95: percentile(first, 0.95),
    itlP50: percentile(spaced.map((each) => each.itl_ms), 0.5),
    itlP95: percentile(spaced.map((each) => each.itl_p95_ms), 0.95),
  };
}

/** The nearest-rank percentile, or null of nothing. */
export function percentile(values, share) {
  if (!values.length) return null;
  const sorted = values.toSorted((a, b) => a - b);
  return sorted[Math.max(0, Math.ceil(share * sorted.length) - 1)];
}

function childrenSeen(before, { children, time }) {
  const seen = new Map([...before].map(([id, each]) => [id, { ...each, isAlive: false }]));
  for (const child of children) {
    const since = before.get(child.id)?.since ?? time;
    seen.set(child.id, { child, since, lastSeen: time, isAlive: true });
  }
  return new Map([...seen].filter(([, each]) => each.lastSeen >= time - GONE_S));
}

function sum(numbers) {
  return numbers.reduce((total, number) => total + number, 0);
}

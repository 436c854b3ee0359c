// Figures as people read them.

/** A duration in milliseconds. */
export function duration(ms) {
  if (!Number.isFinite(ms)) return "–";
  if (ms === 0) return "0";
  if (ms < 10) return `${ms.toFixed(1)} ms`;
  if (ms < 1000) return `${Math.round(ms)} ms`;
  return ms < 60_000 ? `${(ms / 1000).toFixed(1)} s` : `${Math.floor(ms / 60_000)} min ${Math.round(ms % 60_000 / 1000)} s`;
}

/** A number of things, short. */
export function count(number) {
  if (!Number.isFinite(number)) return "–";
  return number < 100_000 ? number.toLocaleString("en") : Intl.NumberFormat("en", { notation: "compact" }).format(number);
}

/** A rate with as many places as matter. */
export function rate(number) {
  return Number.isFinite(number) ? number.toFixed(number < 10 ? 1 : 0) : "–";
}

/** What an answer took, in one line. */
export function timingsText(timings) {
  const parts = [
    `${timings.predicted_n} tokens`,
    `${rate(timings.predicted_per_second)} tok/s`,
    `first token ${duration(timings.ttft_ms)}`,
    `queue ${duration(timings.queue_ms)}`,
    `between tokens ${duration(timings.itl_ms)}, p95 ${duration(timings.itl_p95_ms)}`,
    `prompt ${timings.prompt_n + timings.cache_n}, ${timings.cache_n} reused`,
  ];
  if (timings.attempts > 1) parts.push(`attempt ${timings.attempts}`);
  return parts.join(" · ");
}

// Work that is worth doing once a frame at most, and never for more than a quarter of the time.
const REST = 3;

/** `ask()` has `work` done at a coming frame, however often it is called; `now()` has it done at once. */
export function perFrame(work) {
  let frame = 0;
  let notBefore = 0;

  function run() {
    frame = 0;
    if (performance.now() < notBefore) ask();
    else timed();
  }

  function timed() {
    const started = performance.now();
    notBefore = Infinity;
    work();
    // After the frame, so that what the browser makes of the work counts, too.
    setTimeout(() => {
      const ended = performance.now();
      notBefore = ended + REST * (ended - started);
    });
  }

  function ask() {
    frame ||= requestAnimationFrame(run);
  }

  function now() {
    cancelAnimationFrame(frame);
    frame = 0;
    timed();
  }

  return { ask, now };
}

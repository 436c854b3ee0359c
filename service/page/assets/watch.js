// Asks for snapshots while somebody looks.
import { getJson } from "./api.js";
import { empty, extended } from "./history.js";
import { signal } from "./lib.js";

const EVERY_MS = 1000;

export const history = signal(empty());
export const problem = signal(null);

/** Ask every second while the page can be seen; the function that ends it. */
export function watch() {
  let timer = 0;
  let isOver = false;

  async function turn() {
    if (!document.hidden) await look();
    if (!isOver) timer = setTimeout(turn, EVERY_MS);
  }

  turn();
  return () => {
    isOver = true;
    clearTimeout(timer);
  };
}

async function look() {
  try {
    history.value = extended(history.value, await getJson("v1/status"));
    problem.value = null;
  } catch (error) {
    problem.value = error;
  }
}

// The libraries under the names that the page's modules use; only this file knows where they are.
import { h, render } from "./vendor/preact.js";
import htm from "./vendor/htm.js";

export const html = htm.bind(h);
export { render };
export { useEffect, useRef } from "./vendor/preact-hooks.js";
export { batch, computed, effect, signal, useSignal } from "./vendor/signals.js";

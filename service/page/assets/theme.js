// Light, dark, or as the system says.
import { effect, html, signal } from "./lib.js";
import { kept, keep } from "./storage.js";

const THEMES = ["auto", "light", "dark"];

export const theme = signal(kept(localStorage, "theme", "auto"));

effect(() => {
  document.documentElement.dataset.theme = theme.value;
  keep(localStorage, "theme", theme.value);
});

function next() {
  theme.value = THEMES[(THEMES.indexOf(theme.value) + 1) % THEMES.length];
}

export function ThemeButton() {
  return html`<button type="button" class="quiet" onClick=${next}>Theme: ${theme}</button>`;
}

// The page: its two views, the choice between them, and what lies over both.
import { Dashboard } from "./dashboard.js";
import { KeyDialog } from "./key.js";
import { html, render, signal } from "./lib.js";
import { Playground } from "./playground.js";
import { SnippetDialog } from "./copy.js";
import { ThemeButton } from "./theme.js";

const VIEWS = { playground: "Playground", dashboard: "Dashboard" };

const view = signal(chosen());

function chosen() {
  const name = location.hash.slice(1);
  return name in VIEWS ? name : "playground";
}

function Tab({ name }) {
  return html`<a href=${`#${name}`} aria-current=${view.value === name ? "page" : null}>${VIEWS[name]}</a>`;
}

// The playground stays in place while hidden, so that an answer goes on where it is.
function App() {
  return html`
    <header class="bar">
      <h1>Inference Server</h1>
      <nav aria-label="Views">${Object.keys(VIEWS).map((name) => html`<${Tab} name=${name} />`)}</nav>
      <${ThemeButton} />
    </header>
    <main hidden=${view.value !== "playground"} class="playground"><${Playground} /></main>
    ${view.value === "dashboard" && html`<main class="dashboard"><${Dashboard} /></main>`}
    <${KeyDialog} />
    <${SnippetDialog} />`;
}

addEventListener("hashchange", () => { view.value = chosen(); });
render(html`<${App} />`, document.getElementById("app"));

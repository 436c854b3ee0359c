// Markdown to safe nodes. A text that grows is parsed from its last block only: what is before is settled.
import DOMPurify from "./vendor/dompurify.js";
import MarkdownIt from "./vendor/markdown-it.js";

const markdown = new MarkdownIt({ html: false }).disable("image");

const SAFE = {
  ALLOWED_TAGS: [
    "a", "blockquote", "br", "code", "em", "h1", "h2", "h3", "h4", "h5", "h6", "hr", "li", "ol", "p", "pre",
    "s", "strong", "table", "tbody", "td", "th", "thead", "tr", "ul",
  ],
  ALLOWED_ATTR: ["href", "start"],
  ALLOW_DATA_ATTR: false,
  ALLOWED_URI_REGEXP: /^(?:https?|mailto):/i,
  RETURN_DOM_FRAGMENT: true,
};

DOMPurify.addHook("afterSanitizeAttributes", (node) => {
  if (node.nodeName === "A") {
    node.setAttribute("target", "_blank");
    node.setAttribute("rel", "noopener noreferrer nofollow");
  }
  // A reader of the page by keyboard must be able to scroll what is too wide.
  if (node.nodeName === "PRE") node.setAttribute("tabindex", "0");
});

/** How much work there was: characters parsed, and times that nodes were made. */
export const work = { characters: 0, renders: 0 };

/** Shows a growing Markdown text in `node`. */
export class LiveMarkdown {
  constructor(node) {
    this.settled = document.createElement("div");
    this.tail = document.createElement("div");
    node.replaceChildren(this.settled, this.tail);
    this.reset();
  }

  reset() {
    this.text = "";
    this.done = 0; // characters that are settled
    this.env = {}; // link definitions, which later blocks may use
    this.settled.replaceChildren();
    this.tail.replaceChildren();
  }

  /** Show `text`, usually what was shown before and more. */
  show(text) {
    if (text === this.text) return;
    if (!text.startsWith(this.text)) this.reset();
    this.text = text;
    const source = text.slice(this.done).replaceAll("\r", " ");
    const tokens = markdown.parse(source, this.env);
    work.characters += source.length;
    const last = lastBlock(tokens);
    if (last > 0) {
      this.settled.append(this.nodes(tokens.slice(0, last)));
      this.done += offsetOfLine(source, tokens[last].map[0]);
    }
    this.tail.replaceChildren(this.nodes(tokens.slice(last)));
  }

  nodes(tokens) {
    work.renders += 1;
    return DOMPurify.sanitize(markdown.renderer.render(tokens, markdown.options, this.env), SAFE);
  }
}

// More text can change the last top-level block, never those before it.
function lastBlock(tokens) {
  for (let index = tokens.length - 1; index > 0; index -= 1) {
    const { level, nesting, map } = tokens[index];
    if (level === 0 && nesting >= 0 && map) return index;
  }
  return 0;
}

function offsetOfLine(text, line) {
  let offset = 0;
  for (let count = 0; count < line; count += 1) offset = text.indexOf("\n", offset) + 1;
  return offset;
}

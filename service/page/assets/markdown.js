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
    if (!this.showRest()) this.showRest();
  }

  /** Show what isn't settled; false when some of it has just been, so that there is less now. */
  showRest() {
    const rest = this.text.slice(this.done).replaceAll("\r", " ");
    const env = copied(this.env);
    const tokens = parse(rest, env);
    const offset = startOfLastBlock(tokens, rest);
    if (offset === 0) {
      this.tail.replaceChildren(nodes(tokens, env));
      return true;
    }
    this.settled.append(nodes(parse(rest.slice(0, offset), this.env), this.env));
    this.done += offset;
    return false;
  }
}

function nodes(tokens, env) {
  work.renders += 1;
  return DOMPurify.sanitize(markdown.renderer.render(tokens, markdown.options, env), SAFE);
}

function parse(source, env) {
  work.characters += source.length;
  return markdown.parse(source, env);
}

// A link's definition may be half there: only what is settled may be kept.
function copied(env) {
  return { ...env, references: { ...env.references } };
}

// More text can change the last top-level block, never those before it.
function startOfLastBlock(tokens, source) {
  const blocks = tokens.filter(({ level, nesting, map }) => level === 0 && nesting >= 0 && map);
  return blocks.length > 1 ? offsetOfLine(source, blocks.at(-1).map[0]) : 0;
}

function offsetOfLine(text, line) {
  let offset = 0;
  for (let count = 0; count < line; count += 1) offset = text.indexOf("\n", offset) + 1;
  return offset;
}

// A request as a command or a program that sends the same.

/** Fields that OpenAI's client has no argument for. */
const EXTRA = new Set(["top_k", "min_p", "repeat_penalty", "priority", "ignore_eos"]);

export function asCurl(url, body, hasKey) {
  const lines = [`curl -N ${quoted(url)}`, `-H 'Content-Type: application/json'`];
  if (hasKey) lines.push(`-H "Authorization: Bearer $API_KEY"`);
  lines.push(`-d ${quoted(JSON.stringify({ ...body, stream: true }, null, 2))}`);
  return `${lines.join(" \\\n  ")}\n`;
}

export function asPython(baseUrl, body, hasKey) {
  const given = Object.entries(body).filter(([name]) => !EXTRA.has(name));
  const extra = Object.entries(body).filter(([name]) => EXTRA.has(name));
  const fields = [...given, ["stream", true], ...(extra.length ? [["extra_body", Object.fromEntries(extra)]] : [])];
  const key = hasKey ? `os.environ["API_KEY"]` : `"none"`;
  return `${hasKey ? "import os\n\n" : ""}from openai import OpenAI

client = OpenAI(base_url=${literal(baseUrl)}, api_key=${key})
stream = client.chat.completions.create(
${fields.map(([name, value]) => `    ${name}=${literal(value, "    ")},`).join("\n")}
)
for chunk in stream:
    if chunk.choices:
        print(chunk.choices[0].delta.content or "", end="", flush=True)
`;
}

function quoted(text) {
  return `'${text.replaceAll("'", String.raw`'\''`)}'`;
}

/** A JSON value as Python writes it. */
function literal(value, indent = "") {
  const inner = `${indent}    `;
  if (value === true) return "True";
  if (Array.isArray(value)) {
    return `[\n${value.map((each) => `${inner}${literal(each, inner)},\n`).join("")}${indent}]`;
  }
  if (typeof value === "object") {
    return `{${Object.entries(value).map(([name, each]) => `${literal(name)}: ${literal(each)}`).join(", ")}}`;
  }
  return JSON.stringify(value);
}

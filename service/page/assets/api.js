// The server's API: JSON, errors as people read them, and the API key.
import { askForKey, key } from "./key.js";

/** What the server refused, or that it can't be reached. */
export class Problem extends Error {
  constructor(message, code = "unreachable", retryAfterS = null) {
    super(message);
    this.code = code;
    this.retryAfterS = retryAfterS;
  }
}

/** Fetch `path`; the response, which is a good one. Throws Problem, or AbortError. */
export async function call(path, options = {}) {
  const response = await fetched(path, options);
  if (response.status === 401 && await askForKey()) return call(path, options);
  if (!response.ok) throw await problem(response);
  return response;
}

export async function getJson(path) {
  return (await call(path)).json();
}

export function post(path, body, signal) {
  const headers = { "Content-Type": "application/json" };
  return call(path, { method: "POST", headers, body: JSON.stringify(body), signal });
}

/** Addresses are relative, so that the page also works behind a proxy's path. */
export function address(path) {
  return new URL(path, document.baseURI);
}

async function fetched(path, options) {
  const headers = { ...options.headers };
  if (key.value) headers.Authorization = `Bearer ${key.value}`;
  try {
    return await fetch(address(path), { ...options, headers });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Problem("The server can't be reached.");
  }
}

async function problem(response) {
  const told = await response.json().catch(() => ({}));
  const message = told.error?.message ?? `The server answered ${response.status}.`;
  const retryAfterS = Number(response.headers.get("Retry-After")) || null;
  return new Problem(message, told.error?.code ?? String(response.status), retryAfterS);
}

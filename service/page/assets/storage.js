// What the browser keeps for the page, as JSON; a browser that keeps nothing is no error.
const PREFIX = "inference-server.";

export function kept(storage, name, otherwise) {
  try {
    return JSON.parse(storage.getItem(PREFIX + name)) ?? otherwise;
  } catch {
    return otherwise;
  }
}

export function keep(storage, name, value) {
  try {
    storage.setItem(PREFIX + name, JSON.stringify(value));
  } catch { /* full or forbidden */ }
}

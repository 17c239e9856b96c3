// Requests to /api as the logged-in user: with the proof against forged pages, an idempotency key for
// every change, and problems (RFC 9457) as errors with a text for people.

import { withoutCommands } from "./words.js";

export class Problem extends Error {
  constructor(status, content) {
    super(withoutCommands(content.detail || "") || content.title || `The server answered ${status}.`);
    this.status = status;
    this.content = content;
  }

  // Nothing was refused: the same request can be sent again, with the same key.
  get isTransient() {
    return this.status === 0 || this.status === 429 || this.status >= 502;
  }
}

export function newKey() {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

export function csrf() {
  for (const part of document.cookie.split("; ")) {
    if (part.startsWith("thumbwheel_csrf=")) return decodeURIComponent(part.slice(16));
  }
  return "";
}

// What the server answered to `method path`: {value, etag, status}. `body` is sent as JSON, a Blob as
// it is. `key`: that of an earlier attempt, null where the body has one of its own; `etag`: the state
// that is meant to change.
export async function send(method, path, body, { key, etag, signal, accept } = {}) {
  const headers = { accept: accept || "application/json", "x-csrf-token": csrf() };
  if (method !== "GET" && key !== null) headers["idempotency-key"] = key || newKey();
  if (etag) headers["if-match"] = etag;
  let content;
  if (body instanceof Blob) {
    content = body;
    headers["content-type"] = "application/octet-stream";
  } else if (body !== undefined) {
    content = JSON.stringify(body);
    headers["content-type"] = "application/json";
  }
  let response;
  try {
    response = await fetch(path, { method, headers, body: content, signal, cache: "no-store" });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Problem(0, { detail: "The server cannot be reached. Nothing is lost; try again." });
  }
  const text = await response.text();
  let value = null;
  try {
    value = text ? JSON.parse(text) : null;
  } catch {
    value = text;
  }
  if (!response.ok) {
    const problem = new Problem(response.status, value && typeof value === "object" ? value : {});
    if (response.status === 401 && path !== "/api/login") {
      problem.message = "You are logged out. Log in in another tab, and try again here.";
    }
    if (response.status === 412) {
      problem.message = "Somebody else has changed this since you opened the page. Your change was "
        + "not saved. Reload the page and decide again.";
    }
    throw problem;
  }
  return { value, etag: response.headers.get("etag"), status: response.status };
}

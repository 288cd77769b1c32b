// The admin API: the token is kept in this module's memory alone, and sent as a bearer.

import { clockOf } from "./text.js";

let token = "";

/** What went wrong, as a sentence; `status` is 0 when nobody answered. */
export class Failed extends Error {
  constructor(text, status = 0, problem = {}) {
    super(text);
    this.status = status;
    this.problem = problem;
  }
}

export function use(value) {
  token = value;
}

async function send(path, { method = "GET", body, signal } = {}) {
  const headers = { Accept: "application/json" };
  if (token) headers.Authorization = `Bearer ${token}`;
  if (body !== undefined) headers["Content-Type"] = "application/json";
  let response;
  try {
    response = await fetch(path, {
      method,
      headers,
      body: body === undefined ? undefined : JSON.stringify(body),
      signal,
      cache: "no-store",
      credentials: "omit",
      redirect: "error",
    });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Failed("The sidecar does not answer.");
  }
  clockOf(response.headers.get("Date"));
  if (response.ok) return response;
  const problem = await response.json().catch(() => ({}));
  if (response.status === 401) document.dispatchEvent(new CustomEvent("signed-out"));
  throw new Failed(problem.detail || `The sidecar answered ${response.status}.`, response.status, problem);
}

/** Milliseconds after which an answer is not waited for any more: a look holds up the next one. */
const PATIENCE = 60_000;

export async function text(path) {
  return (await send(path, { signal: AbortSignal.timeout(PATIENCE) })).text();
}

export async function get(path) {
  return (await send(path, { signal: AbortSignal.timeout(PATIENCE) })).json();
}

export async function change(method, path, body) {
  const response = await send(path, { method, body });
  return response.status === 204 ? null : response.json();
}

const SILENCE = 45_000;

/**
 * One connection to the events: `told(type, data)` for each, until it ends or `signal` aborts.
 * EventSource cannot send a bearer, so the stream is read by hand (WHATWG HTML, server-sent events).
 */
export async function events(path, told, opened, signal) {
  const gone = new AbortController();
  const end = () => gone.abort();
  signal.addEventListener("abort", end);
  let watch = setTimeout(end, SILENCE);
  try {
    const response = await send(path, { signal: gone.signal });
    opened();
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "";
    let type = "message";
    let data = [];
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      clearTimeout(watch);
      watch = setTimeout(end, SILENCE);
      const lines = (rest + value).split(/\r\n|\n/);
      rest = lines.pop();
      for (const line of lines) {
        if (line === "") {
          if (data.length) told(type, data.join("\n"));
          type = "message";
          data = [];
        } else if (line.startsWith("event:")) type = line.slice(6).trim();
        else if (line.startsWith("data:")) data.push(line.slice(5).trimStart());
      }
    }
  } finally {
    clearTimeout(watch);
    signal.removeEventListener("abort", end);
    gone.abort();
  }
}

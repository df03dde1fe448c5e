// Asks the node: operators' requests, and calls of entities.

/** What the node refused, or that it did not answer. */
export class Problem extends Error {
  constructor({ code, detail, message, help, outcome, status }) {
    super(detail || message || code);
    this.code = code;
    this.help = help ?? "";
    this.outcome = outcome;
    this.status = status;
  }

  /** Whether the log-in is missing, has expired or was revoked. */
  get needsLogin() {
    return this.status === 401;
  }
}

/** How long a node may take to begin its answer. */
const ANSWER_MS = 10_000;
/** How long a response that goes on may be silent: the node sends an empty line more often. */
const SILENCE_MS = 40_000;

const noAnswer = () => new Problem({ code: "no-answer", detail: "The node does not answer.", status: 0 });

/** Rejects if `work` takes longer. */
function within(ms, work) {
  let timer;
  const late = new Promise((_, reject) => {
    timer = setTimeout(() => reject(noAnswer()), ms);
  });
  return Promise.race([work, late]).finally(() => clearTimeout(timer));
}

async function send(path, options, ms = ANSWER_MS) {
  const abort = new AbortController();
  const signal = options.signal ? AbortSignal.any([options.signal, abort.signal]) : abort.signal;
  let response;
  try {
    response = await within(ms, fetch(path, { credentials: "same-origin", cache: "no-store", ...options, signal }));
  } catch (error) {
    if (options.signal?.aborted) throw error;
    abort.abort();
    throw noAnswer();
  }
  if (response.ok) return response;
  const body = await response.json().catch(() => ({}));
  throw new Problem({ code: `status-${response.status}`, detail: response.statusText, ...body, status: response.status });
}

function post(path, body, signal) {
  return send(path, { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(body), signal });
}

/** The frames of the response to a request, each as it comes. */
async function* frames(request, message, signal) {
  const response = await post(`/v1/admin/${request}`, message, signal);
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  try {
    for (;;) {
      const { value, done } = await within(SILENCE_MS, reader.read());
      text += value ?? "";
      const lines = text.split("\n");
      text = done ? "" : lines.pop();
      for (const line of lines) {
        if (line === "") continue;
        const frame = JSON.parse(line);
        if (frame.problem) throw new Problem(frame.problem);
        yield frame;
      }
      if (done) return;
    }
  } catch (error) {
    if (error instanceof Problem || signal?.aborted) throw error;
    throw noAnswer();
  } finally {
    reader.cancel().catch(() => {});
  }
}

/** The response to a request that has one frame. */
export async function ask(request, message = {}, signal) {
  for await (const frame of frames(request, message, signal)) return frame;
  return {};
}

/** All frames of a response. */
export async function askAll(request, message = {}, signal) {
  const all = [];
  for await (const frame of frames(request, message, signal)) all.push(frame);
  return all;
}

/** Calls `use` with each frame of a response, until it ends. */
export async function follow(request, message, use, signal) {
  for await (const frame of frames(request, message, signal)) use(frame);
}

/** Sends a message to an entity, once for each key; `body` is a text in JSON, or empty. */
function sendTo(type, id, parts, body, key) {
  // The name of a type in another namespace than `default` contains it.
  const name = type.includes(":") ? type.split(":") : ["default", type];
  const path = [...name, id, ...parts].map(encodeURIComponent).join("/");
  const headers = { "idempotency-key": key, ...(body === "" ? {} : { "content-type": "application/json" }) };
  // The node itself ends the request earlier.
  return send(`/v1/${path}`, { method: "POST", headers, ...(body === "" ? {} : { body }) }, SILENCE_MS);
}

/** A key for a message. A browser repeats a request by itself if its connection closes; the command runs once. */
export const newKey = () => crypto.randomUUID();

/** Calls a method of an entity; `body` is a text in JSON, or empty. With the same key, it runs once. */
export async function call(type, id, method, body, key) {
  const response = await sendTo(type, id, ["call", method], body, key);
  return { version: response.headers.get("ostraca-entity-version"), text: await response.text() };
}

/** Resends or drops dead letters of an entity, at most 256; resolves to the numbers of those that were handled. */
export async function handleDeadLetters(type, id, action, numbers) {
  const response = await sendTo(type, id, ["dead-letters", action], JSON.stringify({ numbers }), newKey());
  return (await response.json()).handled;
}

export const logIn = (secret) => post("/console/login", secret);
export const logOut = () => post("/console/logout", {});

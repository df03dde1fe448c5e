/** Calls, and when they are sent again. */

import { CallError, type Outcome, type Problem, found, problemOf } from "./errors.js";
import { Backoff, type Gateways, sleep, wasNotSent } from "./gateways.js";

/** Browsers, and their workers. */
const IN_BROWSER = "document" in globalThis || "WorkerGlobalScope" in globalThis;
/** How long a gateway's answer may take after the deadline that it was given, in milliseconds. */
const GRACE = 1_000;
/** How long a gateway may be silent before a request that may be repeated is sent to another one too, in milliseconds. */
const STALL = 3_000;
/** How many requests of one call may be in progress. */
const MOST_ATTEMPTS = 3;
const OUTCOMES: readonly string[] = ["not-run", "unknown", "unanswered", "application-error", "reply-dropped"];

export interface CallOptions {
  /**
   * Sends the command with an idempotency key, so that it can be sent again and still runs once: a text of your own,
   * or `true` for a random one. Queries need none. An entity remembers a limited number of keys: see `docs/http.md`.
   * The default is `false`, but `true` in browsers: these send a request again by themselves when a connection closes.
   */
  key?: string | boolean;
  /** How long to wait for the outcome, with all retries, in milliseconds. */
  timeout?: number;
  /** Ends the wait. A command that was sent may run all the same. */
  signal?: AbortSignal;
}

/** A method's result. */
export interface Reply<T> {
  /** The result; `undefined` for a method without one, and a `Uint8Array` if it is not JSON. */
  readonly value: T;
  /** The entity's version after the turn, or the one that a query read. */
  readonly version: number;
  /** The message's id, for logs. */
  readonly messageId: string;
}

export type Kind = "command" | "query";

/** A call's result, or why this attempt has none, and whether another may. */
type Attempt<T> = { readonly reply: Reply<T> } | Failure;

interface Failure {
  readonly outcome: Outcome;
  readonly problem: Problem;
  readonly again: boolean;
  /** Whether another gateway may know more. */
  readonly elsewhere: boolean;
  readonly isToken: boolean;
  readonly cause?: unknown;
}

/**
 * Calls a method until there is an outcome that another attempt would not change, or until the deadline. A request that
 * may be repeated and is not answered for a while is sent to another gateway too: whichever answers first counts.
 */
export async function call<T>(
  gateways: Gateways,
  path: string,
  kind: Kind,
  args: unknown,
  { key: named = IN_BROWSER, timeout, signal }: CallOptions & { timeout: number },
): Promise<Reply<T>> {
  if (!(timeout >= 1)) {
    throw new TypeError("the timeout must be at least 1 ms");
  }
  const key = kind === "query" || named === false ? undefined : named === true ? randomKey() : named;
  const body = args === undefined ? undefined : JSON.stringify(args);
  const deadline = performance.now() + timeout;
  const backoff = new Backoff();
  const ended = new AbortController();
  const running = new Set<Promise<Attempt<T>>>();
  const start = () => {
    const remaining = Math.max(1, Math.ceil(deadline - performance.now()));
    const late = AbortSignal.timeout(remaining + GRACE);
    const signals = [ended.signal, late, ...(signal === undefined ? [] : [signal])];
    const request = { kind, key, body, remaining, signal: AbortSignal.any(signals), isAborted: () => signal?.aborted === true };
    const attempt = once<T>(gateways, path, request).finally(() => running.delete(attempt));
    running.add(attempt);
  };
  const mayRepeat = kind === "query" || key !== undefined;
  let doubt: Failure | undefined;
  let hasNewToken = false;
  start();
  try {
    for (;;) {
      const maySpread = mayRepeat && gateways.count > 1 && running.size < MOST_ATTEMPTS;
      const attempt = await first(running, maySpread ? STALL : undefined);
      if (attempt === undefined) {
        gateways.next();
        start();
        continue;
      }
      if ("reply" in attempt) {
        return attempt.reply;
      }
      if (attempt.outcome === "unknown") {
        doubt = attempt;
      }
      if (attempt.elsewhere) {
        gateways.next();
      }
      if (attempt.isToken && gateways.renewsTokens && !hasNewToken) {
        hasNewToken = true;
        start();
        continue;
      }
      const isFinal = attempt.outcome === "application-error" || attempt.outcome === "reply-dropped";
      const pause = Math.max(backoff.next(), attempt.problem.retryAfter ?? 0);
      const isLast = !attempt.again || performance.now() + pause >= deadline;
      if (!isFinal && running.size > 0) {
        // Another attempt may still be answered.
        continue;
      }
      if (isFinal || isLast) {
        // A refusal is about its own attempt: an earlier one may have run.
        const { outcome, problem, cause } = isFinal ? attempt : (doubt ?? attempt);
        throw new CallError(outcome, problem, key, cause);
      }
      await sleep(pause, signal).catch((cause: unknown) => {
        const { outcome, problem } = doubt ?? attempt;
        throw new CallError(outcome, problem, key, cause);
      });
      start();
    }
  } finally {
    ended.abort();
  }
}

/** The first of these that ends; undefined if none does within this time. */
async function first<T>(running: Set<Promise<T>>, within: number | undefined): Promise<T | undefined> {
  if (within === undefined) {
    return await Promise.race(running);
  }
  let timer: ReturnType<typeof setTimeout> | undefined;
  const late = new Promise<undefined>((resolve) => {
    timer = setTimeout(resolve, within, undefined);
  });
  try {
    return await Promise.race([...running, late]);
  } finally {
    clearTimeout(timer);
  }
}

interface Request {
  readonly kind: Kind;
  readonly key: string | undefined;
  readonly body: string | undefined;
  readonly remaining: number;
  readonly signal: AbortSignal;
  /** Whether the caller has ended the wait. */
  readonly isAborted: () => boolean;
}

async function once<T>(gateways: Gateways, path: string, request: Request): Promise<Attempt<T>> {
  const { kind, key, body, remaining, signal } = request;
  const headers: Record<string, string> = { "ostraca-kind": kind, "ostraca-timeout": String(remaining) };
  if (key !== undefined) {
    headers["idempotency-key"] = key;
  }
  if (body !== undefined) {
    headers["content-type"] = "application/json";
  }
  const authorized = await gateways.authorized(headers);
  const init = { method: "POST", headers: authorized, signal, ...(body === undefined ? {} : { body }) };
  let response: Response;
  let bytes: Uint8Array;
  try {
    response = await gateways.request(path, init);
    bytes = new Uint8Array(await response.arrayBuffer());
  } catch (cause) {
    return noAnswer(request, cause);
  }
  const { status } = response;
  const outcome = response.headers.get("ostraca-outcome") ?? "";
  if (outcome === "result" && response.ok) {
    const version = Number(response.headers.get("ostraca-entity-version"));
    const messageId = response.headers.get("ostraca-message-id") ?? "";
    return { reply: { value: valueOf(response, bytes) as T, version, messageId } };
  }
  const problem = problemOf(new TextDecoder().decode(bytes));
  if (problem === undefined || !OUTCOMES.includes(outcome)) {
    const text = `the answer is not a node's: status ${status}. Is there a proxy in between?`;
    const again = status >= 500 && (kind === "query" || key !== undefined);
    return doubtful(kind, found("invalid-answer", text), again);
  }
  const known = outcome as Outcome;
  const mayPass = problem.retryAfter !== undefined;
  return {
    outcome: known,
    problem,
    again: known === "unanswered" || (known === "unknown" && key !== undefined) || (known === "not-run" && mayPass),
    elsewhere: status >= 500,
    isToken: status === 401,
  };
}

/** There was no answer: the request may have arrived. */
function noAnswer({ kind, key, isAborted }: Request, cause: unknown): Failure {
  if (isAborted()) {
    return { ...doubtful(kind, found("aborted", "the caller has ended the wait"), false), cause };
  }
  const text = cause instanceof Error ? [cause.message, (cause.cause as Error | undefined)?.message] : [String(cause)];
  const detail = `no answer from the gateway: ${text.filter(Boolean).join(": ")}`;
  if (wasNotSent(cause)) {
    const problem = found("not-connected", detail);
    return { outcome: "not-run", problem, again: true, elsewhere: true, isToken: false, cause };
  }
  return { ...doubtful(kind, found("connection-lost", detail), kind === "query" || key !== undefined), cause };
}

function doubtful(kind: Kind, problem: Problem, again: boolean): Failure {
  const outcome = kind === "query" ? "unanswered" : "unknown";
  return { outcome, problem, again, elsewhere: true, isToken: false };
}

function valueOf(response: Response, bytes: Uint8Array): unknown {
  if (response.status === 204) {
    return undefined;
  }
  const isJson = response.headers.get("content-type") === "application/json";
  return isJson ? JSON.parse(new TextDecoder().decode(bytes)) : bytes;
}

function randomKey(): string {
  // `randomUUID` is missing where a page was loaded without TLS.
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

/** Errors, by what their receiver may do next. */

/** What is known about a call that has no result. */
export type Outcome =
  /** It had no effect and never will. */
  | "not-run"
  /** The command may have run, or may still run. */
  | "unknown"
  /** A query, which has no effect, got no answer. */
  | "unanswered"
  /** The entity refused it, with a code of its own; this is final. */
  | "application-error"
  /** It ran, but its reply is no longer kept. */
  | "reply-dropped";

/** A problem document (RFC 9457) of a node, as far as it was one. */
export interface Problem {
  readonly code: string;
  readonly detail: string;
  readonly help: string;
  /** Milliseconds after which a retry may succeed. */
  readonly retryAfter: number | undefined;
  readonly messageId: string | undefined;
  readonly entityVersion: number | undefined;
  readonly details: Readonly<Record<string, string>>;
}

/** An error that Ostraca describes: each has a stable code, explained in `docs/errors.md`. */
export class OstracaError extends Error {
  /** A stable code, or the entity's own. */
  readonly code: string;
  /** How to fix it; may be empty. */
  readonly help: string;
  /** More about the error, by name. */
  readonly details: Readonly<Record<string, string>>;
  /** Milliseconds after which a retry may succeed; undefined if none will. */
  readonly retryAfter: number | undefined;

  constructor(message: string, problem: Problem, cause?: unknown) {
    super(message, cause === undefined ? undefined : { cause });
    this.name = new.target.name;
    this.code = problem.code;
    this.help = problem.help;
    this.details = problem.details;
    this.retryAfter = problem.retryAfter;
  }
}

/** A call without a result. */
export class CallError extends OstracaError {
  /** What is known about the call. */
  readonly outcome: Outcome;
  /** The message's id, for logs; undefined if no node answered. */
  readonly messageId: string | undefined;
  /** The entity's version after a refused or dropped command. */
  readonly entityVersion: number | undefined;
  /** The idempotency key under which a command may be sent again. */
  readonly key: string | undefined;

  constructor(outcome: Outcome, problem: Problem, key: string | undefined, cause?: unknown) {
    super(`${outcome}: ${problem.code}: ${problem.detail}`, problem, cause);
    this.outcome = outcome;
    this.messageId = problem.messageId;
    this.entityVersion = problem.entityVersion;
    this.key = key;
  }
}

/** A channel that cannot be followed any further. */
export class ChannelError extends OstracaError {
  constructor(problem: Problem, cause?: unknown) {
    super(`${problem.code}: ${problem.detail}`, problem, cause);
  }
}

/** A problem that this client found itself. */
export function found(code: string, detail: string): Problem {
  return {
    code,
    detail,
    help: "",
    retryAfter: undefined,
    messageId: undefined,
    entityVersion: undefined,
    details: {},
  };
}

/** Reads a problem document; undefined if it is none. */
export function problemOf(text: string): Problem | undefined {
  let read: unknown;
  try {
    read = JSON.parse(text);
  } catch {
    return undefined;
  }
  if (typeof read !== "object" || read === null) {
    return undefined;
  }
  const document = read as Record<string, unknown>;
  const { code, detail, help, details } = document;
  if (typeof code !== "string") {
    return undefined;
  }
  const number = (name: string) => (typeof document[name] === "number" ? document[name] : undefined);
  return {
    code,
    detail: typeof detail === "string" ? detail : "",
    help: typeof help === "string" ? help : "",
    retryAfter: number("retry-after-ms"),
    messageId: typeof document["message-id"] === "string" ? document["message-id"] : undefined,
    entityVersion: number("entity-version"),
    details: typeof details === "object" && details !== null ? (details as Record<string, string>) : {},
  };
}

/** Channels: items that an entity emits, as server-sent events. */

import { ChannelError, type Problem, found, problemOf } from "./errors.js";
import { Backoff, type Gateways, sleep } from "./gateways.js";

/** A response that says nothing for so long is given up, in milliseconds: a node says something every 15 s. */
const SILENCE = 40_000;

export interface ChannelOptions {
  /** Where to begin: with the next item (the default), with the oldest that is kept, or behind a call's version. */
  from?: "now" | "oldest" | { readonly version: number };
  /** Begins behind the item with this cursor instead. */
  after?: string;
  /** Ends it. */
  signal?: AbortSignal;
}

export type ChannelEvent<T> =
  | {
      readonly type: "item";
      /** The item; a `Uint8Array` if it is not JSON. */
      readonly item: T;
      /** The version of the entity that emitted it. */
      readonly version: number;
      /** When, in milliseconds since 1970-01-01 00:00 UTC. */
      readonly utcMs: number;
      /** Where the item is: `after` continues behind it, through any node. */
      readonly cursor: string;
    }
  /** Items that are no longer kept are missing here: so many, if it is known. */
  | { readonly type: "lost"; readonly count: number | undefined };

interface ServerEvent {
  readonly type: string;
  readonly id: string | undefined;
  readonly data: string;
}

/** Follows a channel, through one gateway after the other, until it is refused or aborted. */
export async function* follow<T>(
  gateways: Gateways,
  path: string,
  { from, after, signal }: ChannelOptions,
): AsyncGenerator<ChannelEvent<T>, void, undefined> {
  const start = typeof from === "object" ? `version:${from.version}` : (from ?? "now");
  const backoff = new Backoff();
  let cursor = after;
  let hasNewToken = false;
  for (;;) {
    const ended = new AbortController();
    const abort = () => ended.abort(signal?.reason);
    signal?.addEventListener("abort", abort, { once: true });
    let retryAfter = 0;
    const accept: Record<string, string> = { accept: "text/event-stream" };
    if (cursor !== undefined) {
      accept["last-event-id"] = cursor;
    }
    const headers = await gateways.authorized(accept);
    try {
      signal?.throwIfAborted();
      const query = cursor === undefined ? `?from=${encodeURIComponent(start)}` : "";
      const response = await awake(ended, gateways.request(path + query, { headers, signal: ended.signal }));
      const type = response.headers.get("content-type") ?? "";
      if (response.status !== 200 || !type.startsWith("text/event-stream") || response.body === null) {
        const text = await awake(ended, response.text());
        const problem = problemOf(text) ?? unexpected(response.status);
        if (response.status === 401 && gateways.renewsTokens && !hasNewToken) {
          hasNewToken = true;
          continue;
        }
        retryAfter = retryOf(problem);
      } else {
        for await (const event of events(ended, response.body)) {
          if (event.type === "problem") {
            retryAfter = retryOf(problemOf(event.data) ?? found("invalid-answer", event.data));
            break;
          }
          backoff.reset();
          hasNewToken = false;
          cursor = event.id ?? cursor;
          const shown = eventOf<T>(event, cursor ?? "");
          if (shown !== undefined) {
            yield shown;
          }
        }
      }
      gateways.next();
    } catch (error) {
      signal?.throwIfAborted();
      if (error instanceof ChannelError) {
        throw error;
      }
      // The connection failed.
      gateways.next();
    } finally {
      signal?.removeEventListener("abort", abort);
      ended.abort();
    }
    await sleep(Math.max(backoff.next(), retryAfter), signal);
  }
}

/** Milliseconds until a retry, if one may succeed. */
function retryOf(problem: Problem): number {
  if (problem.retryAfter === undefined) {
    throw new ChannelError(problem);
  }
  return problem.retryAfter;
}

function unexpected(status: number): Problem {
  const problem = found("invalid-answer", `the answer is not a node's: status ${status}`);
  return status >= 500 ? { ...problem, retryAfter: 0 } : problem;
}

function eventOf<T>({ type, data }: ServerEvent, cursor: string): ChannelEvent<T> | undefined {
  if (data === "") {
    return undefined;
  }
  const read = JSON.parse(data) as Record<string, unknown>;
  if (type === "lost") {
    return { type: "lost", count: typeof read["count"] === "number" ? read["count"] : undefined };
  }
  if (type !== "message") {
    return undefined;
  }
  const { base64 } = read;
  const item = typeof base64 === "string" ? Uint8Array.from(atob(base64), (it) => it.charCodeAt(0)) : read["item"];
  return { type: "item", item: item as T, version: Number(read["version"]), utcMs: Number(read["utc-ms"]), cursor };
}

/** Waits for part of a response, but not for ever. */
async function awake<T>(ended: AbortController, part: Promise<T>): Promise<T> {
  const timer = setTimeout(() => ended.abort(new Error("the gateway is silent")), SILENCE);
  try {
    return await part;
  } finally {
    clearTimeout(timer);
  }
}

/** The events of a stream, as the HTML standard describes them. */
async function* events(ended: AbortController, body: ReadableStream<Uint8Array>): AsyncGenerator<ServerEvent> {
  const reader = body.getReader();
  const decoder = new TextDecoder();
  let rest = "";
  let type = "message";
  let id: string | undefined;
  let data: string[] = [];
  for (;;) {
    const { value, done } = await awake(ended, reader.read());
    if (done) {
      return;
    }
    const lines = (rest + decoder.decode(value, { stream: true })).split("\n");
    rest = lines.pop() ?? "";
    for (const line of lines) {
      if (line === "") {
        if (id !== undefined || data.length > 0) {
          yield { type, id, data: data.join("\n") };
        }
        [type, id, data] = ["message", undefined, []];
        continue;
      }
      const colon = line.indexOf(":");
      const field = colon < 0 ? line : line.slice(0, colon);
      const text = colon < 0 ? "" : line.slice(colon + 1).replace(/^ /, "");
      if (field === "event") {
        type = text;
      } else if (field === "id") {
        id = text;
      } else if (field === "data") {
        data.push(text);
      }
    }
  }
}

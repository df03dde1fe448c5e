/** Requests over WebTransport: one connection to each gateway, with a stream for each request. */

/** Where a gateway opens sessions. */
const PATH = "/v1/webtransport";
/** A session without requests is closed after so many milliseconds; a gateway closes it after `http.header-timeout`. */
const IDLE = 5_000;
/** Requests of one session, half of what a gateway takes. */
const MOST = 5_000;
/** How long a session may take to open, in milliseconds. */
const OPENING = 3_000;
/**
 * After a failure to open one, no other is opened for so many milliseconds, and for longer after each further failure:
 * browsers slow down pages whose sessions often fail.
 */
const FIRST_PAUSE = 1_000;
const LONGEST_PAUSE = 60_000;
/** Responses with these statuses have no body. */
const WITHOUT_BODY = new Set([204, 205, 304]);

export interface WebTransportOptions {
  /**
   * SHA-256 hashes of the gateways' certificates, in hexadecimal: they are accepted though no authority has signed
   * them. Browsers want such a certificate to be valid for at most 14 days, and its key to be ECDSA.
   */
  readonly certificateHashes?: readonly string[];
}

/**
 * A `fetch` that sends requests to gateways over WebTransport, for {@link ClientOptions.fetch}. Where there is no
 * WebTransport, it is the global `fetch`; so it is for a gateway that WebTransport cannot reach, except that with
 * `certificateHashes` the request then fails.
 */
export function webTransport(options: WebTransportOptions = {}): typeof fetch {
  const hashes = (options.certificateHashes ?? []).map((text) => ({ algorithm: "sha-256", value: bytesOf(text) }));
  const gateways = new Map<string, Gateway>();
  return async (input, init) => {
    const request = new Request(input, init);
    const { origin, protocol } = new URL(request.url);
    if (!("WebTransport" in globalThis) || protocol !== "https:") {
      return fetch(request);
    }
    let gateway = gateways.get(origin);
    if (gateway === undefined) {
      gateway = new Gateway(origin, hashes);
      gateways.set(origin, gateway);
    }
    return gateway.fetch(request);
  };
}

/** The bytes of hexadecimal text; colons between them are fine, as in what openssl prints. */
function bytesOf(hexadecimal: string): Uint8Array<ArrayBuffer> {
  const digits = hexadecimal.replaceAll(":", "");
  if (!/^[0-9a-f]{64}$/i.test(digits)) {
    throw new TypeError(`${hexadecimal} is not a SHA-256 hash of a certificate: expected 64 hexadecimal digits`);
  }
  return Uint8Array.from(digits.match(/../g) ?? [], (pair) => Number.parseInt(pair, 16));
}

/** One gateway, and the session that its next request uses. */
class Gateway {
  readonly #origin: string;
  readonly #hashes: WebTransportHash[];
  #session: Promise<Session | undefined> | undefined;
  #transport: WebTransport | undefined;
  #pause = FIRST_PAUSE;
  #pausedUntil = 0;

  constructor(origin: string, hashes: WebTransportHash[]) {
    this.#origin = origin;
    this.#hashes = hashes;
  }

  async fetch(request: Request): Promise<Response> {
    const { signal } = request;
    signal.throwIfAborted();
    const body = request.body === null ? new Uint8Array() : new Uint8Array(await request.arrayBuffer());
    // A session can end before the stream is open: nothing has been sent then.
    for (let isLast = false; Date.now() >= this.#pausedUntil; isLast = true) {
      const session = await orAborted(this.#current(), signal);
      const stream = session === undefined ? undefined : await session.stream(signal);
      if (session !== undefined && stream !== undefined) {
        return await exchange(request, body, stream, () => session.release());
      }
      if (isLast) {
        break;
      }
    }
    if (this.#hashes.length > 0) {
      // Nothing else accepts such a certificate.
      throw new TypeError(`no WebTransport session with ${this.#origin} can be opened`);
    }
    const { method, headers, cache, redirect } = request;
    return fetch(request.url, { method, headers, cache, redirect, signal, body: request.body === null ? null : body });
  }

  #current(): Promise<Session | undefined> {
    this.#session ??= this.#open();
    return this.#session;
  }

  /** A new session, or `undefined` if none can be opened. */
  async #open(): Promise<Session | undefined> {
    const options = this.#hashes.length > 0 ? { serverCertificateHashes: this.#hashes } : {};
    const transport = new WebTransport(this.#origin + PATH, options);
    const forget = () => {
      if (this.#transport === transport) {
        this.#session = undefined;
      }
    };
    this.#transport = transport;
    transport.closed.then(forget, forget);
    if (await isReady(transport)) {
      this.#pause = FIRST_PAUSE;
      return new Session(transport, forget);
    }
    this.#pausedUntil = Date.now() + this.#pause;
    this.#pause = Math.min(2 * this.#pause, LONGEST_PAUSE);
    forget();
    transport.close();
    return undefined;
  }
}

async function isReady(transport: WebTransport): Promise<boolean> {
  let timer: ReturnType<typeof setTimeout> | undefined;
  const late = new Promise<boolean>((resolve) => {
    timer = setTimeout(() => resolve(false), OPENING);
  });
  const ready = transport.ready.then(() => true, () => false);
  try {
    return await Promise.race([ready, late]);
  } finally {
    clearTimeout(timer);
  }
}

/** An open session. */
class Session {
  readonly #transport: WebTransport;
  readonly #forget: () => void;
  #opened = 0;
  #active = 0;
  #timer: ReturnType<typeof setTimeout> | undefined;

  /** `forget`: no further request uses it. */
  constructor(transport: WebTransport, forget: () => void) {
    this.#transport = transport;
    this.#forget = forget;
    this.#wait();
  }

  /** A stream for one request, or `undefined` if the session has ended. An abort does not wait for one. */
  async stream(signal: AbortSignal): Promise<WebTransportBidirectionalStream | undefined> {
    clearTimeout(this.#timer);
    this.#active += 1;
    this.#opened += 1;
    if (this.#opened >= MOST) {
      this.#forget();
    }
    const opening = this.#transport.createBidirectionalStream();
    try {
      const stream = await orAborted(opening, signal);
      signal.throwIfAborted();
      return stream;
    } catch {
      // A stream that comes too late has carried nothing.
      opening
        .then(({ writable }) => writable.abort())
        .catch(() => {})
        .finally(() => this.release());
      signal.throwIfAborted();
      this.#forget();
      return undefined;
    }
  }

  /** One request has ended. */
  release(): void {
    this.#active -= 1;
    if (this.#active === 0) {
      this.#wait();
    }
  }

  #wait(): void {
    this.#timer = setTimeout(() => {
      this.#forget();
      this.#transport.close();
    }, IDLE);
  }
}

/** Sends a request on a stream, and receives the response. */
async function exchange(
  request: Request,
  body: Uint8Array<ArrayBuffer>,
  { readable, writable }: WebTransportBidirectionalStream,
  release: () => void,
): Promise<Response> {
  const { method, url, headers, signal } = request;
  const { pathname, search } = new URL(url);
  const head = { method, path: pathname + search, headers: Object.fromEntries(headers) };
  const writer: WritableStreamDefaultWriter<Uint8Array<ArrayBuffer>> = writable.getWriter();
  const reader: ReadableStreamDefaultReader<Uint8Array<ArrayBuffer>> = readable.getReader();
  const ignored = () => {};
  const abort = () => {
    writer.abort(signal.reason).catch(ignored);
    reader.cancel(signal.reason).catch(ignored);
  };
  let isOver = false;
  const ended = () => {
    if (!isOver) {
      isOver = true;
      signal.removeEventListener("abort", aborted);
      release();
    }
  };
  const aborted = () => {
    abort();
    ended();
  };
  signal.addEventListener("abort", aborted, { once: true });
  const next = async () => {
    const { value } = await reader.read().catch((error: unknown) => {
      signal.throwIfAborted();
      throw new TypeError("the WebTransport stream was lost", { cause: error });
    });
    // What was cancelled has ended.
    signal.throwIfAborted();
    return value;
  };
  try {
    // A gateway may answer before it has read everything.
    writer.write(joined([new TextEncoder().encode(`${JSON.stringify(head)}\n`), body])).catch(ignored);
    writer.close().catch(ignored);
    const parts: Uint8Array<ArrayBuffer>[] = [];
    let newline = -1;
    while (newline < 0) {
      const part = await next();
      if (part === undefined) {
        throw new TypeError("the WebTransport stream ended without a response");
      }
      parts.push(part);
      newline = part.indexOf(10);
    }
    const received = joined(parts);
    const end = received.indexOf(10);
    const response = JSON.parse(new TextDecoder().decode(received.subarray(0, end))) as ResponseInit & { status: number };
    let rest: Uint8Array<ArrayBuffer> | undefined = received.subarray(end + 1);
    // A stream that a gateway left early looks like one that it ended.
    const length = Number(new Headers(response.headers).get("content-length") ?? Number.NaN);
    let size = 0;
    const content = new ReadableStream<Uint8Array<ArrayBuffer>>({
      async pull(controller) {
        try {
          const part = rest?.length ? rest : await next();
          rest = undefined;
          size += part?.length ?? 0;
          if (part === undefined) {
            if (size < length) {
              throw new TypeError(`the response ended after ${size} of ${length} bytes`);
            }
            if (!isOver) {
              controller.close();
            }
            ended();
          } else {
            controller.enqueue(part);
          }
        } catch (error) {
          ended();
          controller.error(error);
        }
      },
      async cancel(reason: unknown) {
        ended();
        await reader.cancel(reason);
      },
    });
    if (WITHOUT_BODY.has(response.status)) {
      content.cancel().catch(ignored);
      return new Response(null, response);
    }
    return new Response(content, response);
  } catch (error) {
    ended();
    abort();
    throw error;
  }
}

function joined(parts: readonly Uint8Array[]): Uint8Array<ArrayBuffer> {
  const all = new Uint8Array(parts.reduce((length, part) => length + part.length, 0));
  let at = 0;
  for (const part of parts) {
    all.set(part, at);
    at += part.length;
  }
  return all;
}

/** What a promise resolves to; an abort does not wait for it. */
async function orAborted<T>(promise: Promise<T>, signal: AbortSignal): Promise<T> {
  let abort = () => {};
  const aborted = new Promise<never>((_, reject) => {
    abort = () => reject(signal.reason);
    signal.addEventListener("abort", abort, { once: true });
  });
  try {
    return await Promise.race([promise, aborted]);
  } finally {
    signal.removeEventListener("abort", abort);
  }
}

/** Requests to one of the cluster's gateways: another one after each failure. */

/** Shortest and longest pause before a retry, in milliseconds. */
const FIRST_PAUSE = 10;
const LONGEST_PAUSE = 1_000;

/** A token, or what returns the current one. */
export type Token = string | (() => string | Promise<string>);

export interface GatewayOptions {
  readonly token: Token | undefined;
  readonly fetch: typeof fetch;
}

export class Gateways {
  readonly #addresses: readonly string[];
  readonly #options: GatewayOptions;
  #current: number;

  constructor(addresses: readonly string[], options: GatewayOptions) {
    if (addresses.length === 0) {
      throw new TypeError("name the address of at least one gateway, such as http://127.0.0.1:7480");
    }
    this.#addresses = addresses.map((address) => {
      const { origin, protocol } = new URL(address);
      if (protocol !== "http:" && protocol !== "https:") {
        throw new TypeError(`${address} is no address of a gateway: it must begin with http:// or https://`);
      }
      return origin;
    });
    this.#options = options;
    this.#current = Math.floor(Math.random() * this.#addresses.length);
  }

  /** How many there are. */
  get count(): number {
    return this.#addresses.length;
  }

  /** Whether a refused token may be replaced by a newer one. */
  get renewsTokens(): boolean {
    return typeof this.#options.token === "function";
  }

  /** These headers, and the token. Throws what the application's function for tokens throws. */
  async authorized(headers: Record<string, string>): Promise<Record<string, string>> {
    const { token } = this.#options;
    const current = typeof token === "function" ? await token() : token;
    return current === undefined ? headers : { ...headers, authorization: `Bearer ${current}` };
  }

  /** Sends a request to the current gateway. */
  async request(path: string, init: RequestInit): Promise<Response> {
    init.signal?.throwIfAborted();
    const address = this.#addresses[this.#current];
    return await this.#options.fetch(`${address}${path}`, { ...init, cache: "no-store", redirect: "error" });
  }

  /** Uses the next gateway from now on. */
  next(): void {
    this.#current = (this.#current + 1) % this.#addresses.length;
  }
}

/** Whether a request that failed was certainly not sent: only Node.js says so. */
export function wasNotSent(error: unknown): boolean {
  const codes = new Set(["ECONNREFUSED", "ENOTFOUND", "EAI_AGAIN", "EHOSTUNREACH", "ENETUNREACH", "UND_ERR_CONNECT_TIMEOUT"]);
  for (let at = error; at instanceof Error; at = at.cause) {
    const { code, errors } = at as { code?: unknown; errors?: unknown };
    if (typeof code === "string" && codes.has(code)) {
      return true;
    }
    if (Array.isArray(errors) && errors.length > 0) {
      return errors.every(wasNotSent);
    }
  }
  return false;
}

/** Pauses that grow, each shortened by chance so that callers do not come back together. */
export class Backoff {
  #longest = FIRST_PAUSE;

  next(): number {
    const pause = this.#longest * (0.5 + Math.random() / 2);
    this.#longest = Math.min(this.#longest * 2, LONGEST_PAUSE);
    return pause;
  }

  reset(): void {
    this.#longest = FIRST_PAUSE;
  }
}

/** Waits; an abort ends it, too. */
export function sleep(milliseconds: number, signal: AbortSignal | undefined): Promise<void> {
  return new Promise((resolve, reject) => {
    if (signal?.aborted) {
      reject(signal.reason);
      return;
    }
    const aborted = () => {
      clearTimeout(timer);
      reject(signal?.reason);
    };
    const timer = setTimeout(() => {
      signal?.removeEventListener("abort", aborted);
      resolve();
    }, milliseconds);
    signal?.addEventListener("abort", aborted, { once: true });
  });
}

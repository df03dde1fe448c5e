/** What an application uses: a client, and the entities that it calls. */

import { type CallOptions, type Kind, type Reply, call } from "./call.js";
import { type ChannelEvent, type ChannelOptions, follow } from "./channel.js";
import { Gateways, type Token } from "./gateways.js";

/** How long a call waits for its outcome unless it says otherwise, in milliseconds. */
const TIMEOUT = 10_000;

export interface ClientOptions {
  /** The token that names the caller, or a function that returns the current one. */
  token?: Token;
  /** How long a call waits for its outcome, with all retries, in milliseconds: 10,000 by default. */
  timeout?: number;
  /** The namespace of the entities' types: `default` by default. */
  namespace?: string;
  /** Sends requests instead of the global `fetch`. */
  fetch?: typeof fetch;
}

/** Calls entities through the gateways of a cluster. */
export class Client {
  readonly #gateways: Gateways;
  readonly #timeout: number;
  readonly #namespace: string;

  /** `addresses`: of one or several nodes, such as `http://127.0.0.1:7480`. A call that fails at one tries the next. */
  constructor(addresses: string | readonly string[], options: ClientOptions = {}) {
    const all = typeof addresses === "string" ? [addresses] : addresses;
    const send = options.fetch ?? ((input, init) => fetch(input, init));
    this.#gateways = new Gateways(all, { token: options.token, fetch: send });
    this.#timeout = options.timeout ?? TIMEOUT;
    this.#namespace = options.namespace ?? "default";
  }

  /** The entity of this type with this id. It need not exist: its first message creates it. */
  entity(type: string, id: string): Entity {
    return new Entity(this.#gateways, this.#timeout, type, id, this.#namespace);
  }
}

/** An entity, as seen by its callers. */
export class Entity {
  readonly #gateways: Gateways;
  readonly #timeout: number;
  readonly #path: string;

  /** Not for applications: see {@link Client.entity}. */
  constructor(
    gateways: Gateways,
    timeout: number,
    readonly type: string,
    readonly id: string,
    namespace = "default",
  ) {
    if (type === "" || id === "") {
      throw new TypeError("an entity has a type and an id, neither of which is empty");
    }
    this.#gateways = gateways;
    this.#timeout = timeout;
    this.#path = `/v1/${encoded(namespace)}/${encoded(type)}/${encoded(id)}`;
  }

  /**
   * Calls a method that may change state. `args` are the method's arguments: an object with a member for each
   * parameter, or the only argument itself.
   *
   * @throws {CallError} whose `outcome` says what is known about the call.
   */
  command<T = unknown>(method: string, args?: unknown, options: CallOptions = {}): Promise<Reply<T>> {
    return this.#call("command", method, args, options);
  }

  /**
   * Calls a method that changes nothing. It is sent again until it is answered.
   *
   * @throws {CallError}
   */
  query<T = unknown>(method: string, args?: unknown, options: CallOptions = {}): Promise<Reply<T>> {
    return this.#call("query", method, args, options);
  }

  /**
   * Follows a channel of the entity. The items come in the order in which they were emitted, and none comes twice; it
   * continues through other nodes when its connection breaks.
   *
   * @throws {ChannelError}
   */
  channel<T = unknown>(name: string, options: ChannelOptions = {}): AsyncGenerator<ChannelEvent<T>, void, undefined> {
    return follow(this.#gateways, `${this.#path}/channel/${encoded(name)}`, options);
  }

  #call<T>(kind: Kind, method: string, args: unknown, options: CallOptions): Promise<Reply<T>> {
    const path = `${this.#path}/call/${encoded(method)}`;
    return call(this.#gateways, path, kind, args, { ...options, timeout: options.timeout ?? this.#timeout });
  }
}

/** A part of a path. */
function encoded(part: string): string {
  if (part === "." || part === "..") {
    throw new TypeError(`"${part}" cannot be a part of a URL: choose another name`);
  }
  return encodeURIComponent(part);
}

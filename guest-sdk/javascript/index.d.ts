/** What an entity in TypeScript is made of. `docs/guests-javascript.md` in Ostraca's repository explains it. */

/** A type of arguments or results: it checks values, and describes itself as a JSON Schema. */
export interface Type<T> {
  readonly isOptional: boolean;
  /** What is wrong with a value, if anything. */
  check(value: unknown, path: string): string | undefined;
  schema(definitions: Record<string, unknown>): unknown;
  /** Not there: only for the compiler. */
  readonly __type?: T;
}

/** A member or parameter that may be left out. */
export interface Optional<T> extends Type<T | null | undefined> {
  readonly isOptional: true;
}

/** The values of a type. */
export type Infer<T> = T extends Type<infer V> ? V : never;

type Members = Record<string, Type<any>>;
type OptionalNames<M extends Members> = { [N in keyof M]: M[N] extends Optional<any> ? N : never }[keyof M];
type Values<M extends Members> = { [N in Exclude<keyof M, OptionalNames<M>>]: Infer<M[N]> } & {
  [N in OptionalNames<M>]?: Infer<M[N]>;
};

export declare namespace types {
  const any: Type<any>;
  /** Of a method without a result. */
  const nothing: Type<void>;
  const boolean: Type<boolean>;
  const string: Type<string>;
  const number: Type<number>;
  /** A whole number that JavaScript represents exactly, within these bounds. */
  function integer(bounds?: { minimum?: number; maximum?: number }): Type<number>;
  function literal<const V extends readonly (string | number | boolean)[]>(...values: V): Type<V[number]>;
  function array<T>(of: Type<T>): Type<T[]>;
  function map<T>(of: Type<T>): Type<Record<string, T>>;
  function object<M extends Members>(members: M): Type<Values<M>>;
  /** A member or parameter that may be left out, or be null. */
  function optional<T>(of: Type<T>): Optional<T>;
  function nullable<T>(of: Type<T>): Type<T | null>;
  function union<T extends readonly Type<any>[]>(...of: T): Type<Infer<T[number]>>;
  /** The same type, under a name in schemas and typed calls. */
  function named<T>(name: string, of: Type<T>): Type<T>;
}

/** The entity refuses a message, or a timer's firing fails: with a code for programs, and a text for people. */
export declare class Refusal extends Error {
  readonly code: string;
  constructor(code: string, message?: string);
}

export interface Signature<P extends Members, R> {
  /** What the method does, in one line. */
  summary?: string;
  /** Its parameters, by name and in order. */
  parameters?: P;
  result?: Type<R>;
}

export type StartReason = "first-message" | "message" | "remembered";
export type StopReason = "idle" | "evicted" | "passivated" | "handed-off" | "redeployed";

/** One firing of a timer. */
export interface Firing {
  name: string;
  payload: any;
  /** When it was due, in milliseconds since 1970-01-01 00:00 UTC. */
  due: number;
  /** How many more firings of a repeating timer have come due in the meantime. */
  missed: number;
  /** The number of this attempt, from 1. */
  attempt: number;
}

export interface EntityOptions<S> {
  /** The state of a new entity. It must be what JSON can express: it is stored after each turn that has changed it. */
  initial?: () => S;
  /** The number of the state's layout; 0 by default. */
  schema?: number;
  /** Makes the state of this layout from that of another one. */
  migrate?: (old: any, from: number) => S;
}

export interface Definition<S> {
  /** A method that may change the state. */
  command<P extends Members = {}, R = any>(
    name: string,
    signature: Signature<P, R>,
    run: (state: S, args: Values<P>) => R,
  ): this;
  /** A method that does not change the state. */
  query<P extends Members = {}, R = any>(
    name: string,
    signature: Signature<P, R>,
    run: (state: S, args: Values<P>) => R,
  ): this;
  /** Handles the firings of timers. If it throws, the firing is attempted again. */
  onTimer(run: (state: S, firing: Firing) => void): this;
  /** Called once for each instance, before its first message. */
  onStart(run: (state: S, reason: StartReason) => void): this;
  /** Called before the host drops an instance, but not after a crash. */
  onStop(run: (state: S, reason: StopReason) => void): this;
}

/** Begins the definition of an entity, which is its module's default export. */
export declare function entity<S = any>(options?: EntityOptions<S>): Definition<S>;

export interface Identity {
  namespace: string;
  entityType: string;
  id: string;
  revision: number;
}

export interface MessageContext {
  session: string;
  sequence: number;
  kind: "command" | "query";
  /** Who sent it, such as `client/alice`. */
  principal: string;
  contentType: string;
  traceparent: string;
  tracestate: string;
  remainingMs: number | null;
  /** The entity's version before this turn. */
  version: number;
}

/** Who this entity is, and the message that this turn handles, if it handles one. */
export declare const context: { readonly self: Identity; readonly message: MessageContext | undefined };

/** The time of this turn, in milliseconds since 1970-01-01 00:00 UTC. `Date.now()` is the same. */
export declare function now(): number;

/** Random bytes of this turn. `Math.random()` belongs to the turn, too. */
export declare function randomBytes(length: number): Uint8Array;

/** Keys and values beside the state: what is too large to be stored with each turn. */
export declare const keys: {
  get(key: string): any;
  set(key: string, value: unknown): void;
  delete(key: string): boolean;
  /** A page of the keys that begin with a prefix, in order, at most 1,000. */
  list(prefix?: string, options?: { limit?: number; cursor?: string }): { entries: [string, any][]; next?: string };
};

/** A time: a date, or milliseconds since 1970-01-01 00:00 UTC. */
export type Time = Date | number;

/** Sends a command to an entity, when this turn is committed. */
export declare function tell(entityType: string, id: string, method: string, args?: unknown): void;
/** Sends a command at a time, under a name by which it can be cancelled. */
export declare function tellAt(
  name: string,
  time: Time,
  entityType: string,
  id: string,
  method: string,
  args?: unknown,
): void;
/** Cancels such a command; false if there is none. */
export declare function cancelTell(name: string): boolean;

/** Why an ask has no result. */
export declare class AskError extends Error {
  readonly outcome: "application-error" | "not-run" | "unknown";
  readonly code: string;
}

export interface PendingAsk {
  /** Waits for the result. Meanwhile, the node runs other entities. */
  wait(): any;
}

/** Sends a request to an entity, and waits for its result. `timeout` is in milliseconds. */
export declare function ask(
  entityType: string,
  id: string,
  method: string,
  args?: unknown,
  options?: { timeout?: number },
): any;
/** Sends a request to an entity without waiting. */
export declare function startAsk(
  entityType: string,
  id: string,
  method: string,
  args?: unknown,
  options?: { timeout?: number },
): PendingAsk;
/** Waits until one of these is answered, and returns its index. */
export declare function waitAny(asks: PendingAsk[]): number;

export interface Timer {
  name: string;
  due: number;
  interval: number | null;
  payload: any;
  attempts: number;
  failure: string | null;
  setAside: boolean;
}

/** Timers, whose firings `onTimer` handles. Times are in milliseconds. */
export declare const timers: {
  set(name: string, when: { at: Time; every?: number } | { after: number; every?: number }, payload?: unknown): void;
  cancel(name: string): boolean;
  list(): Timer[];
};

/** Events that turns append, and later turns read. */
export declare const journal: {
  append(event: unknown): number;
  read(from?: number, limit?: number): { events: { number: number; event: any }[]; next?: number };
  readonly extent: { first: number; next: number; bytes: number; snapshot: number | null };
  truncate(before: number): number;
  saveSnapshot(value: unknown): void;
  loadSnapshot(): { through: number; value: any } | undefined;
};

/** Emits an item on a channel, when this turn is committed. */
export declare function emit(channel: string, item: unknown): void;
/** Subscribes to a channel of another entity: each item calls this entity's method. */
export declare function subscribe(entityType: string, id: string, channel: string, method: string): void;
export declare function unsubscribe(entityType: string, id: string, channel: string): void;

export declare const lifecycle: {
  /** Drops this instance after the turn. */
  passivate(): void;
  /** Keeps this instance for so many milliseconds without a message. */
  passivateAfter(delay?: number): void;
  /** Starts this entity wherever its shard is, without waiting for a message. */
  remember(): void;
  forget(): void;
  readonly isRemembered: boolean;
  /** Deletes this entity when the turn ends. */
  delete(): void;
  expireAt(time?: Time): void;
  readonly expiresAt: number | undefined;
};

/** A secret of the type that the manifest names; undefined if it is not set. */
export declare function secret(name: string): string | undefined;
/** A setting of the type that the manifest names; undefined if it is not set. */
export declare function setting(name: string): string | undefined;

/** Lines in the node's log. */
export declare const log: Record<"trace" | "debug" | "info" | "warn" | "error", (message: unknown) => void>;

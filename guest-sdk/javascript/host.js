// What an entity can ask of its host, in terms of JavaScript. Bytes are JSON, unless a name ends with `Bytes`.

import * as hostAsks from "ostraca:entity/asks@0.1.0";
import * as hostChannels from "ostraca:entity/channels@0.1.0";
import * as hostClock from "ostraca:entity/clock@0.1.0";
import * as hostContext from "ostraca:entity/context@0.1.0";
import * as hostDeletion from "ostraca:entity/deletion@0.1.0";
import * as hostJournal from "ostraca:entity/journal@0.1.0";
import * as hostLifecycle from "ostraca:entity/lifecycle@0.1.0";
import * as hostLog from "ostraca:entity/log@0.1.0";
import * as hostMessaging from "ostraca:entity/messaging@0.1.0";
import * as hostPassivation from "ostraca:entity/passivation@0.1.0";
import * as hostRandom from "ostraca:entity/random@0.1.0";
import * as hostRemembering from "ostraca:entity/remembering@0.1.0";
import * as hostSecrets from "ostraca:entity/secrets@0.1.0";
import * as hostSettings from "ostraca:entity/settings@0.1.0";
import * as hostState from "ostraca:entity/state@0.1.0";
import * as hostSubscriptions from "ostraca:entity/subscriptions@0.1.0";
import * as hostTimers from "ostraca:entity/timers@0.1.0";

import { fromJson, toJson } from "./bytes.js";

const JSON_TYPE = "application/json";
/** Keys of the entity's own begin with this, apart from the state's. */
const KEY = "key/";

const absent = (value) => value ?? undefined;
/** Milliseconds since 1970 of a date, or of such a number. */
const millis = (time) => Math.max(0, Math.round(Number(time)));
const target = (entityType, id) => ({ entityType, id });

/** Who this entity is, and the message that this turn handles. */
export const context = {
  get self() {
    return hostContext.selfIdentity();
  },
  get message() {
    return absent(hostContext.currentMessage());
  },
};

/** The time of this turn, in milliseconds since 1970-01-01 00:00 UTC. */
export function now() {
  return Number(hostClock.now());
}

/** Random bytes of this turn. */
export function randomBytes(length) {
  return hostRandom.getBytes(length);
}

/** Keys and values beside the state. */
export const keys = {
  get: (key) => {
    const bytes = absent(hostState.get(KEY + key));
    return bytes === undefined ? undefined : fromJson(bytes);
  },
  set: (key, value) => hostState.set(KEY + key, toJson(value)),
  delete: (key) => hostState.delete(KEY + key),
  /** A page of the keys that begin with `prefix`, in order. */
  list: (prefix = "", { limit = 100, cursor } = {}) => {
    const page = hostState.list(KEY + prefix, limit, cursor === undefined ? null : KEY + cursor);
    const entries = page.entries.map(([key, value]) => [key.slice(KEY.length), fromJson(value)]);
    return { entries, next: page.next == null ? undefined : page.next.slice(KEY.length) };
  },
};

/** Sends a command to an entity, when this turn is committed. */
export function tell(entityType, id, method, args) {
  hostMessaging.tell(target(entityType, id), method, toJson(args), JSON_TYPE);
}

/** Sends a command at a time, under a name by which it can be cancelled. */
export function tellAt(name, time, entityType, id, method, args) {
  hostMessaging.tellAt(name, millis(time), target(entityType, id), method, toJson(args), JSON_TYPE);
}

/** Cancels it; false if there is none. */
export function cancelTell(name) {
  return hostMessaging.cancelTell(name);
}

/** Why an ask has no result. `outcome`: `application-error`, `not-run` or `unknown`. */
export class AskError extends Error {
  constructor({ tag, val }) {
    super(typeof val === "string" ? val : val.message);
    this.name = "AskError";
    this.outcome = tag === "application" ? "application-error" : tag;
    this.code = typeof val === "string" ? "unknown" : val.code;
  }
}

/** A request to another entity that is on its way. */
class PendingAsk {
  /** Of the host. */
  #handle;

  constructor(handle) {
    this.#handle = handle;
  }

  get handle() {
    return this.#handle;
  }

  /** Waits for the result. */
  wait() {
    let result;
    try {
      result = this.#handle.wait();
    } catch (error) {
      const failure = error?.payload ?? error;
      throw typeof failure?.tag === "string" ? new AskError(failure) : error;
    }
    return fromJson(result);
  }
}

/** Sends a request to an entity without waiting. */
export function startAsk(entityType, id, method, args, { timeout } = {}) {
  const limit = timeout === undefined ? null : millis(timeout);
  return new PendingAsk(hostAsks.startAsk(target(entityType, id), method, toJson(args), JSON_TYPE, limit));
}

/** Sends a request to an entity, and waits for its result. */
export function ask(entityType, id, method, args, options) {
  return startAsk(entityType, id, method, args, options).wait();
}

/** Waits until one of these is answered, and returns its index. */
export function waitAny(asks) {
  return hostAsks.waitAny(asks.map((it) => it.handle));
}

/** Timers, whose firings `onTimer` handles. */
export const timers = {
  /** Sets a timer: `{ at }` or `{ after }`, and perhaps `{ every }`, in milliseconds. */
  set: (name, { at, after, every }, payload) => {
    const time = at === undefined ? { tag: "after", val: millis(after ?? 0) } : { tag: "at", val: millis(at) };
    hostTimers.set(name, time, every === undefined ? null : millis(every), toJson(payload));
  },
  cancel: (name) => hostTimers.cancel(name),
  list: () => hostTimers.list().map((timer) => ({ ...timer, payload: fromJson(timer.payload) })),
};

/** Events that turns append, and later turns read. */
export const journal = {
  append: (event) => Number(hostJournal.append(toJson(event))),
  read: (from = 1, limit = 100) => {
    const { events, next } = hostJournal.read(from, limit);
    return {
      events: events.map(({ number, data }) => ({ number: Number(number), event: fromJson(data) })),
      next: absent(next),
    };
  },
  get extent() {
    return hostJournal.getExtent();
  },
  truncate: (before) => Number(hostJournal.truncate(before)),
  saveSnapshot: (value) => hostJournal.saveSnapshot(toJson(value)),
  loadSnapshot: () => {
    const found = absent(hostJournal.loadSnapshot());
    return found === undefined ? undefined : { through: Number(found.through), value: fromJson(found.data) };
  },
};

/** Emits an item on a channel, when this turn is committed. */
export function emit(channel, item) {
  hostChannels.emit(channel, toJson(item));
}

/** Subscribes to a channel of another entity: each item calls this entity's method. */
export function subscribe(entityType, id, channel, method) {
  hostSubscriptions.subscribe(target(entityType, id), channel, method);
}

export function unsubscribe(entityType, id, channel) {
  hostSubscriptions.unsubscribe(target(entityType, id), channel);
}

export const lifecycle = {
  /** Drops this instance after the turn. */
  passivate: () => hostLifecycle.passivate(),
  /** Keeps this instance for so many milliseconds without a message; with none, as long as the type says. */
  passivateAfter: (delay) => hostPassivation.passivateAfter(delay === undefined ? null : millis(delay)),
  /** Starts this entity wherever its shard is, without waiting for a message. */
  remember: () => hostRemembering.remember(),
  forget: () => hostRemembering.forget(),
  get isRemembered() {
    return hostRemembering.isRemembered();
  },
  /** Deletes this entity when the turn ends. */
  delete: () => hostDeletion.delete(),
  /** Sets when it is deleted; with none, when the type says. */
  expireAt: (time) => hostDeletion.expireAt(time === undefined ? null : millis(time)),
  get expiresAt() {
    return absent(hostDeletion.expiresAt());
  },
};

/** A secret or setting of the type that the manifest names; undefined if it is not set. */
export function secret(name) {
  return absent(hostSecrets.get(name));
}

export function setting(name) {
  return absent(hostSettings.get(name));
}

const line = (level) => (message) => hostLog.log(level, String(message));

/** Lines in the node's log. */
export const log = {
  trace: line("trace"),
  debug: line("debug"),
  info: line("info"),
  warn: line("warn"),
  error: line("error"),
};

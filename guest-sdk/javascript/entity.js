// An entity: its definition, and the interfaces that its component exports.

import * as log from "ostraca:entity/log@0.1.0";
import * as random from "ostraca:entity/random@0.1.0";
import * as store from "ostraca:entity/state@0.1.0";

import { fromJson, toJson } from "./bytes.js";
import { any, complete, isObject, object } from "./types.js";

/** The key under which the state is kept. Keys of the entity's own are other ones. */
const STATE = "state";

/** The entity refuses a message, or a timer's firing fails: with a code for programs, and a text for people. */
export class Refusal extends Error {
  constructor(code, message = code) {
    super(message);
    this.name = "Refusal";
    this.code = code;
  }
}

/** What the host gets to know of a refusal of arguments. */
class InvalidArguments extends Error {}

/** Begins the definition of an entity. */
export function entity(options = {}) {
  return new Definition(options);
}

class Definition {
  #options;
  #methods = new Map();
  #onTimer;
  #onStart;
  #onStop;

  constructor(options) {
    this.#options = options;
  }

  command(name, signature, run) {
    return this.#method("command", name, signature, run);
  }

  query(name, signature, run) {
    return this.#method("query", name, signature, run);
  }

  onTimer(run) {
    this.#onTimer = run;
    return this;
  }

  onStart(run) {
    this.#onStart = run;
    return this;
  }

  onStop(run) {
    this.#onStop = run;
    return this;
  }

  #method(kind, name, { summary = "", parameters = {}, result = any }, run) {
    if (this.#methods.has(name)) {
      throw new Error(`the method ${name} is defined twice`);
    }
    const names = Object.keys(parameters);
    this.#methods.set(name, { kind, summary, parameters, names, named: object(parameters), result, run });
    return this;
  }

  /** The interfaces that the component exports. */
  component() {
    const { schema = 0, migrate } = this.#options;
    const instance = new Instance(this.#options.initial ?? (() => ({})));
    const methods = Array.from(this.#methods);
    const turn = (what, run) => instance.turn(what, run);
    return {
      methods: {
        methods: () => methods.map(([name, { kind, summary }]) => ({ name, kind, summary })),
      },
      schemas: {
        schemas: () => methods.map(([method, it]) => ({ method, ...schemasOf(it) })),
      },
      handler: {
        start: (reason) => {
          const onStart = this.#onStart;
          if (onStart !== undefined) {
            turn({ refused: (error) => error.message, saves: true }, (state) => onStart(state, reason));
          }
        },
        message: (name, body) => {
          const method = this.#methods.get(name);
          if (method === undefined) {
            throw { tag: "unknown-method" };
          }
          const refused = ({ code, message }) => ({ tag: "application", val: { code, message } });
          return turn({ refused, saves: method.kind === "command" }, (state) => {
            return toJson(method.run(state, argumentsOf(method, body)));
          });
        },
      },
      stop: {
        stop: (reason) => {
          const onStop = this.#onStop;
          if (onStop !== undefined) {
            turn({ saves: true }, (state) => onStop(state, reason));
          }
        },
      },
      timerHandler: {
        timer: ({ payload, ...firing }) => {
          const onTimer = this.#onTimer;
          const refused = ({ code, message }) => ({ code, message });
          turn({ refused, saves: true }, (state) => {
            if (onTimer === undefined) {
              throw new Error(`the timer ${firing.name} fires, but the entity has no onTimer`);
            }
            onTimer(state, { ...firing, payload: fromJson(payload) });
          });
        },
      },
      migration: {
        schemaVersion: () => schema,
        newestSchema: () => schema,
        migrate: (from) => {
          if (migrate === undefined) {
            throw `this entity cannot migrate from schema ${from}`;
          }
          try {
            instance.replace((old) => migrate(old, from));
          } catch (error) {
            throw error instanceof Refusal ? `${error.code}: ${error.message}` : panicked(error);
          }
        },
      },
    };
  }
}

/** The state of one entity, while its instance lives. */
class Instance {
  #initial;
  #state;
  /** The state as it is stored, in JSON; undefined until it is read. */
  #saved;

  constructor(initial) {
    this.#initial = initial;
  }

  /** Runs a turn, and stores the state if it has changed. What is refused changes nothing. */
  turn({ refused, saves }, run) {
    // The engine's own generator was seeded when the component was built: all entities would draw the same numbers.
    Math.random = turnRandom;
    try {
      this.#read();
      const result = run(this.#state);
      const changed = JSON.stringify(this.#state);
      if (changed !== this.#saved) {
        if (!saves) {
          throw new Error("a query has changed the state: make the method a command");
        }
        store.set(STATE, toJson(this.#state));
        this.#saved = changed;
      }
      return result;
    } catch (error) {
      this.#saved = undefined;
      if (error instanceof InvalidArguments) {
        throw { tag: "invalid-arguments", val: error.message };
      }
      if (error instanceof Refusal && refused !== undefined) {
        throw refused(error);
      }
      throw panicked(error);
    }
  }

  /** Replaces the stored state, if there is one. */
  replace(migrated) {
    const bytes = store.get(STATE) ?? undefined;
    if (bytes !== undefined) {
      store.set(STATE, toJson(migrated(fromJson(bytes))));
    }
  }

  #read() {
    if (this.#saved !== undefined) {
      return;
    }
    const bytes = store.get(STATE) ?? undefined;
    this.#state = bytes === undefined ? this.#initial() : fromJson(bytes);
    this.#saved = JSON.stringify(this.#state);
  }
}

/** A number from 0 to below 1 with 48 random bits, which belongs to the turn. */
function turnRandom() {
  return random.getBytes(6).reduce((sum, byte) => (sum + byte) / 256, 0);
}

/** Tells the host why the guest is about to trap, as it does for whatever is thrown but refusals. */
function panicked(error) {
  const [, file, line] = /\(?([^\s()]+):(\d+)(?::\d+)?\)?/.exec(error?.stack ?? "") ?? [];
  log.reportPanic(String(error), file ?? "", Number(line ?? 0));
  return error;
}

/** The named arguments of a message. The only one of a method may also be sent alone. */
function argumentsOf({ parameters, names, named }, body) {
  let value;
  try {
    value = fromJson(body) ?? {};
  } catch (error) {
    throw new InvalidArguments(`the body is not JSON: ${error.message}`);
  }
  if (names.length === 0 && value === null) {
    return {};
  }
  let wrong = named.check(value, "");
  if (wrong !== undefined && names.length === 1) {
    const [only] = names;
    const isNamed = isObject(value) && Object.hasOwn(value, only);
    const wrongAlone = parameters[only].check(value, "");
    if (wrongAlone === undefined) {
      return { [only]: value };
    }
    wrong = isNamed ? wrong : wrongAlone;
  }
  if (wrong !== undefined) {
    throw new InvalidArguments(wrong);
  }
  return value;
}

/** The JSON Schemas of a method, as texts. */
function schemasOf({ parameters, names, named, result }) {
  const definitions = {};
  let schema = named.schema(definitions);
  if (names.length === 0) {
    schema = { ...schema, type: ["object", "null"] };
  } else if (names.length === 1) {
    schema = { anyOf: [schema, parameters[names[0]].schema(definitions)] };
  }
  if (Object.keys(definitions).length > 0) {
    schema = { ...schema, $defs: definitions };
  }
  return { arguments: JSON.stringify(schema), result: JSON.stringify(complete(result)) };
}

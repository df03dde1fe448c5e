// Types of arguments and results: each checks a value, and describes itself as a JSON Schema.

const shown = (value) => {
  if (Array.isArray(value)) {
    return "an array";
  }
  const text = typeof value === "object" && value !== null ? "an object" : JSON.stringify(value);
  return text.length > 40 ? `${text.slice(0, 40)}…` : text;
};
const isObject = (value) => typeof value === "object" && value !== null && !Array.isArray(value);

/**
 * A type. `schema(definitions)` is its JSON Schema, whose named parts it puts into `definitions`. `check(value, path)`
 * says what is wrong with a value, if anything.
 */
class Type {
  constructor(schema, check, isOptional = false) {
    this.schema = schema;
    this.check = check;
    this.isOptional = isOptional;
  }
}

function plain(schema, name, test) {
  const check = (value, path) => (test(value) ? undefined : `${path}expected ${name}, found ${shown(value)}`);
  return new Type(() => schema, check);
}

export const any = new Type(
  () => true,
  () => undefined,
);
export const nothing = plain({ type: "null" }, "null", (value) => value === null || value === undefined);
export const boolean = plain({ type: "boolean" }, "boolean", (value) => typeof value === "boolean");
export const string = plain({ type: "string" }, "string", (value) => typeof value === "string");
export const number = plain({ type: "number" }, "number", (value) => typeof value === "number");

/** A whole number that JavaScript represents exactly, within these bounds. */
export function integer({ minimum = Number.MIN_SAFE_INTEGER, maximum = Number.MAX_SAFE_INTEGER } = {}) {
  const schema = { type: "integer", minimum, maximum };
  return new Type(
    () => schema,
    (value, path) => {
      if (!Number.isSafeInteger(value)) {
        return `${path}expected integer, found ${shown(value)}`;
      }
      if (value < minimum || value > maximum) {
        return `${path}${value} must be ${minimum} to ${maximum}`;
      }
      return undefined;
    },
  );
}

/** One of these texts, numbers or booleans. */
export function literal(...values) {
  const names = values.map((value) => JSON.stringify(value)).join(" or ");
  return plain({ enum: values }, names, (value) => values.includes(value));
}

export function array(of) {
  return new Type(
    (definitions) => ({ type: "array", items: of.schema(definitions) }),
    (value, path) => {
      if (!Array.isArray(value)) {
        return `${path}expected array, found ${shown(value)}`;
      }
      for (const [at, item] of value.entries()) {
        const wrong = of.check(item, within(path, at));
        if (wrong !== undefined) {
          return wrong;
        }
      }
      return undefined;
    },
  );
}

/** An object with any members, whose values are of this type. */
export function map(of) {
  return new Type(
    (definitions) => ({ type: "object", additionalProperties: of.schema(definitions) }),
    (value, path) => {
      if (!isObject(value)) {
        return `${path}expected object, found ${shown(value)}`;
      }
      for (const [name, member] of Object.entries(value)) {
        const wrong = of.check(member, within(path, name));
        if (wrong !== undefined) {
          return wrong;
        }
      }
      return undefined;
    },
  );
}

/** An object with exactly these members. */
export function object(members) {
  const names = Object.keys(members);
  const required = names.filter((name) => !members[name].isOptional);
  return new Type(
    (definitions) => ({
      type: "object",
      properties: Object.fromEntries(names.map((name) => [name, members[name].schema(definitions)])),
      required,
      additionalProperties: false,
    }),
    (value, path) => {
      if (!isObject(value)) {
        return `${path}expected object, found ${shown(value)}`;
      }
      for (const name of Object.keys(value)) {
        if (!Object.hasOwn(members, name)) {
          return `${path}unknown member ${JSON.stringify(name)}`;
        }
        const wrong = members[name].check(value[name], within(path, name));
        if (wrong !== undefined) {
          return wrong;
        }
      }
      const missing = required.find((name) => !Object.hasOwn(value, name));
      return missing === undefined ? undefined : `${path}missing member ${JSON.stringify(missing)}`;
    },
  );
}

/** A member or parameter that may be left out, or be null. */
export function optional(of) {
  const type = nullable(of);
  return new Type(type.schema, (value, path) => (value === undefined ? undefined : type.check(value, path)), true);
}

export function nullable(of) {
  return new Type(
    (definitions) => ({ anyOf: [of.schema(definitions), { type: "null" }] }),
    (value, path) => (value === null ? undefined : of.check(value, path)),
  );
}

/** A value of any of these types. */
export function union(...types) {
  return new Type(
    (definitions) => ({ anyOf: types.map((type) => type.schema(definitions)) }),
    (value, path) => {
      const all = types.map((type) => type.check(value, path));
      return all.includes(undefined) ? undefined : all[0];
    },
  );
}

/** The same type, under a name in schemas and typed calls. */
export function named(name, of) {
  return new Type(
    (definitions) => {
      if (!Object.hasOwn(definitions, name)) {
        definitions[name] = true;
        definitions[name] = of.schema(definitions);
      }
      return { $ref: `#/$defs/${name}` };
    },
    (value, path) => of.check(value, path),
    of.isOptional,
  );
}

function within(path, part) {
  return path === "" ? `at ${part}: ` : `${path.slice(0, -2)}.${part}: `;
}

/** A schema in which everything that it refers to is. */
export function complete(type) {
  const definitions = {};
  const schema = type.schema(definitions);
  return Object.keys(definitions).length === 0 ? schema : { ...schema, $defs: definitions };
}

export { isObject };

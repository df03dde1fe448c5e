// A form that sends a message, made from the schema of the method's arguments.

import { ask, call, newKey } from "./api.js";
import { foreign, h, setText, show, visible } from "./dom.js";
import { kindOf } from "./format.js";

export async function sendForm(live, section, type, id, sent) {
  const { methods } = await ask("methods", { type });
  const all = (methods?.methods ?? []).filter((it) => live.may(kindOf(it), type));
  if (all.length === 0) return;
  const method = h("select", { id: "send-method", onchange: () => choose() },
    all.map((it, at) => h("option", { value: String(at) }, `${visible(it.name)} (${kindOf(it)})`)));
  const summary = h("p", { class: "muted" });
  const fields = h("div", { class: "fields" });
  const asJson = h("input", { type: "checkbox", onchange: () => choose() });
  const result = h("output", { class: "result", id: "send-result" });
  const button = h("button", { type: "submit", class: "primary" }, "Send");
  let read = () => "";
  /** What was sent without a final outcome: sent again without a change, it has the same key, and so runs once. */
  let open = null;

  const choose = () => {
    const chosen = all[Number(method.value)];
    setText(summary, chosen.summary ?? "");
    const field = argumentsField(chosen.schema?.arguments, asJson.checked);
    read = field.read;
    show(fields, field.element);
  };

  const submit = async (event) => {
    event.preventDefault();
    const chosen = all[Number(method.value)];
    button.disabled = true;
    try {
      const body = read();
      if (open?.method !== chosen.name || open.body !== body) open = { method: chosen.name, body, key: newKey() };
      show(result, "Sending …");
      const began = performance.now();
      const { text, version } = await call(type, id, chosen.name, body, open.key);
      open = null;
      const ms = performance.now() - began;
      show(result, h("pre", null, foreign(text === "" ? "(no result)" : text)), h("span", { class: "muted" }, `version ${version}, ${ms.toFixed(1)} ms`));
      sent();
    } catch (error) {
      const outcome = error.outcome ? ` (${error.outcome})` : "";
      const inDoubt = error.outcome === "unknown" || error.code === "no-answer";
      if (!inDoubt) open = null;
      const help = inDoubt ? "It may have run. Send it again without a change: it runs once." : error.help ?? "";
      show(result, h("p", { class: "problem" }, h("strong", null, foreign(error.code ?? "invalid")), outcome, " ", foreign(error.message), " ", foreign(help)));
    } finally {
      button.disabled = false;
    }
  };

  show(section, h("h2", null, "Send a message"),
    h("form", { class: "send", onsubmit: submit },
      h("label", null, "Method ", method), summary, fields,
      h("div", { class: "actions" }, h("label", null, asJson, " Write the arguments as JSON"), button), result));
  choose();
}

/** What the arguments are typed into: `read` returns them as a text in JSON, or throws what is wrong. */
function argumentsField(text, asJson) {
  let schema;
  try {
    schema = JSON.parse(text ?? "");
  } catch {
    return jsonField("Arguments in JSON; empty if there are none");
  }
  if (takesNothing(schema)) return { element: h("p", { class: "muted" }, "This method has no arguments."), read: () => "" };
  const field = asJson ? null : fieldOf(schema, schema, "Arguments", true, 0);
  if (field === null) return jsonField("Arguments in JSON");
  return { element: field.element, read: () => JSON.stringify(field.read() ?? null) };
}

function jsonField(label) {
  const input = h("textarea", { rows: "4", spellcheck: "false", "aria-label": label, placeholder: label });
  return {
    element: input,
    read: () => {
      const text = input.value.trim();
      if (text !== "") JSON.parse(text);
      return text;
    },
  };
}

function takesNothing(schema) {
  if (schema === null || typeof schema !== "object") return false;
  if (schema.type === "null") return true;
  return schema.type === "object" && Object.keys(schema.properties ?? {}).length === 0 && schema.additionalProperties === false;
}

const DEPTH = 4;

/** A field for a value of a schema; `null` if only JSON can express it. */
function fieldOf(schema, root, label, required, depth) {
  const resolved = resolve(schema, root);
  if (resolved === null || depth > DEPTH) return null;
  // The first form of several that can be shown: methods with one argument take it with its name or alone.
  if (resolved.choices) return resolved.choices.reduce((found, it) => found ?? fieldOf(it, root, label, required, depth + 1), null);
  const types = [resolved.type].flat().filter((it) => it !== undefined);
  const optional = !required || types.includes("null");
  const kinds = types.filter((it) => it !== "null");
  if (Array.isArray(resolved.enum) && resolved.enum.every((it) => typeof it === "string")) return choiceField(resolved.enum, label, optional);
  if (kinds.length !== 1) return null;
  const [kind] = kinds;
  if (kind === "object") return objectField(resolved, root, label, depth);
  if (kind === "boolean") {
    const input = h("input", { type: "checkbox" });
    return { element: h("label", { class: "field" }, input, " ", foreign(label)), read: () => input.checked };
  }
  if (kind === "integer" || kind === "number") return numberField(kind, label, optional);
  if (kind === "string") {
    const input = h("input", { type: "text", autocomplete: "off" });
    return { element: labelled(label, optional, input), read: () => (optional && input.value === "" ? undefined : input.value) };
  }
  return null;
}

function labelled(label, optional, input) {
  return h("label", { class: "field" }, h("span", null, foreign(label), optional ? h("span", { class: "muted" }, " (optional)") : null), input);
}

function choiceField(values, label, optional) {
  const input = h("select", null, optional ? h("option", { value: "" }, "–") : null,
    values.map((it, at) => h("option", { value: String(at) }, visible(it))));
  return { element: labelled(label, optional, input), read: () => (input.value === "" ? undefined : values[Number(input.value)]) };
}

function numberField(kind, label, optional) {
  const input = h("input", { type: "text", inputmode: "decimal", autocomplete: "off" });
  return {
    element: labelled(label, optional, input),
    read: () => {
      const text = input.value.trim();
      if (text === "" && optional) return undefined;
      const value = Number(text);
      if (text === "" || !Number.isFinite(value) || (kind === "integer" && !Number.isInteger(value))) throw new Error(`${label}: not a${kind === "integer" ? "n integer" : " number"}`);
      if (kind === "integer" && !Number.isSafeInteger(value)) throw new Error(`${label}: too large for this form, write the arguments as JSON`);
      return value;
    },
  };
}

function objectField(schema, root, label, depth) {
  const required = new Set(schema.required ?? []);
  const names = Object.keys(schema.properties ?? {});
  if (names.length === 0 || names.length > 20) return null;
  const fields = names.map((name) => [name, fieldOf(schema.properties[name], root, name, required.has(name), depth + 1)]);
  if (fields.some(([, field]) => field === null)) return null;
  return {
    element: h("fieldset", null, h("legend", null, foreign(label)), fields.map(([, field]) => field.element)),
    read: () => Object.fromEntries(fields.map(([name, field]) => [name, field.read()]).filter(([, value]) => value !== undefined)),
  };
}

/** Follows references within the schema, and takes the only choice that is not null. */
function resolve(schema, root) {
  let current = schema;
  for (let steps = 0; steps < 8; steps += 1) {
    if (current === null || typeof current !== "object") return null;
    if (typeof current.$ref === "string") {
      if (!current.$ref.startsWith("#/")) return null;
      current = current.$ref.slice(2).split("/").reduce((at, part) => at?.[part.replaceAll("~1", "/").replaceAll("~0", "~")], root) ?? null;
    } else if (Array.isArray(current.anyOf)) {
      const choices = current.anyOf.filter((it) => it?.type !== "null");
      if (choices.length !== 1) return { choices };
      [current] = choices;
    } else return current;
  }
  return null;
}

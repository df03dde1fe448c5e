// Which entities are to run a revision: all of them, or a part that may grow.

import { confirmed } from "./confirm.js";
import { h, setText } from "./dom.js";
import { number } from "./format.js";

/**
 * Asks for it. `now` is the rollout that is changed, if there is one; `others` is the revision that entities outside the
 * part run, and `warning` what else is to be known. Resolves to the fields of a request, or `null`.
 */
export async function chosenRollout({ title, action, now, others, warning }) {
  const choice = (value, label) => h("label", { class: "field" }, h("input", { type: "radio", name: "part", value, checked: (value === "part") === (now !== undefined), onchange: () => choose() }), label);
  const field = (label, unit, value, attributes) => {
    const input = h("input", { type: "number", min: "0", required: true, value, oninput: () => check(), ...attributes });
    return [h("label", { class: "field" }, h("span", null, label), input, unit), input];
  };
  const [shareField, share] = field("Share", "% of the entities, always the same ones", number(now?.perMille ?? 50) / 10, { max: "100", step: "0.1" });
  const [shardsField, shards] = field("And the first", "shards of the pool", number(now?.shards), { step: "1" });
  const [rateField, rate] = field("And then", "more shards each minute, until all entities run it", number(now?.rate), { max: "1000000", step: "1" });
  const values = () => ({ perMille: Math.round(share.valueAsNumber * 10) || 0, shards: shards.valueAsNumber || 0, rate: rate.valueAsNumber || 0 });
  const check = () => share.setCustomValidity(Object.values(values()).some((it) => it > 0) ? "" : "No entity would run it.");
  const part = h("fieldset", null, h("legend", null, "The part"), shareField, shardsField, rateField);
  const meaning = h("p", { class: "muted" });
  const all = choice("all", "All entities");
  const choose = () => {
    part.disabled = all.querySelector("input").checked;
    setText(meaning, part.disabled ? "All entities of the type run it from then on." : `The others run revision ${others}. An entity that has run the new revision stays on it.`);
  };
  choose();
  const form = h("div", { class: "fields" },
    h("fieldset", null, h("legend", null, "Who runs it"), all, choice("part", "A part of them")),
    part, meaning, warning ? h("p", { class: "problem" }, warning) : null);
  if (!(await confirmed(title, form, action))) return null;
  if (part.disabled) return {};
  const rollout = values();
  // What was not changed is left out: the rollout may have advanced in the meantime.
  if (rollout.perMille === number(now?.perMille)) delete rollout.perMille;
  if (now && rollout.shards === number(now.shards)) delete rollout.shards;
  return { rollout };
}

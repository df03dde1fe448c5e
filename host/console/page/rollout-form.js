// Which entities are to run a revision: all of them, or a part that may grow.

import { confirmed } from "./confirm.js";
import { h, setText } from "./dom.js";
import { number } from "./format.js";

/** Asks for it; `now` is the rollout that is changed, if there is one. Resolves to the fields of a request, or `null`. */
export async function chosenRollout(title, action, now) {
  const choice = (value, label) => h("label", { class: "field" }, h("input", { type: "radio", name: "part", value, checked: (value === "part") === (now !== undefined), onchange: () => choose() }), label);
  const field = (label, unit, attributes) => {
    const input = h("input", { type: "number", min: "0", required: true, oninput: () => check(), ...attributes });
    return [h("label", { class: "field" }, h("span", null, label), input, unit), input];
  };
  const [shareField, share] = field("Share", "% of the entities, always the same ones", { max: "100", step: "0.1", value: number(now?.perMille ?? 50) / 10 });
  const [shardsField, shards] = field("And the shards 1 to", "", { step: "1", value: number(now?.shards) });
  const [rateField, rate] = field("And then", "more shards each minute, until all entities run it", { max: "1000000", step: "1", value: number(now?.rate) });
  const read = () => ({ perMille: Math.round(share.valueAsNumber * 10) || 0, shards: shards.valueAsNumber || 0, rate: rate.valueAsNumber || 0 });
  const check = () => share.setCustomValidity(Object.values(read()).some((it) => it > 0) ? "" : "No entity would run it.");
  const part = h("fieldset", null, h("legend", null, "The part"), shareField, shardsField, rateField);
  const meaning = h("p", { class: "muted" });
  const all = choice("all", "All entities");
  const choose = () => {
    part.disabled = all.querySelector("input").checked;
    setText(meaning, part.disabled ? "All its entities run it from then on." : "The others run the revision before it. An entity that has run the new revision stays on it.");
  };
  choose();
  const form = h("div", { class: "fields" }, all, choice("part", "A part of them"), part, meaning);
  if (!(await confirmed(title, form, action))) return null;
  if (part.disabled) return {};
  return { rollout: read() };
}

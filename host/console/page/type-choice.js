// A choice among the types that the log-in may use.

import { h, show } from "./dom.js";

/** Calls `changed` when another type is chosen, and when there are other types. */
export class TypeChoice {
  #live;
  #changed;
  #names;

  constructor(live, changed) {
    this.#live = live;
    this.#changed = changed;
    this.element = h("select", { name: "type", onchange: () => changed() });
  }

  /** The chosen type; empty for all types. */
  get value() {
    return this.element.value;
  }

  /** To be called when the permissions may have changed. */
  draw() {
    const names = (this.#live.me?.types ?? []).map((it) => it.type);
    // Without a role on all types, one must be chosen.
    const all = this.#live.mayView ? [""] : [];
    const text = [...all, ...names].join("\n");
    if (text === this.#names) return;
    this.#names = text;
    const chosen = this.value;
    show(this.element, [...all, ...names].map((it) => h("option", { value: it, selected: it === chosen }, it || "all types")));
    this.#changed();
  }
}

// A long list of which only the visible rows are elements.

import { h, show } from "./dom.js";

const HEIGHT = 36;
const SPARE = 8;

export class Rows {
  #items = [];
  #draw;
  #nearEnd;
  #viewport;
  #space;
  #pending = false;

  /** `draw` makes a row's element; `nearEnd` is called when the last rows become visible. */
  constructor(caption, columns, draw, nearEnd = () => {}) {
    this.#draw = draw;
    this.#nearEnd = nearEnd;
    this.#space = h("div", { class: "rows-space", role: "presentation" });
    this.#viewport = h("div", { class: "rows-viewport", tabindex: "0", role: "rowgroup", onscroll: () => this.#soon() }, this.#space);
    this.element = h("div", { class: "rows", role: "table", "aria-label": caption },
      h("div", { class: "row head", role: "row" }, columns.map((it) => h("span", { role: "columnheader" }, it))),
      this.#viewport);
    new ResizeObserver(() => this.#soon()).observe(this.#viewport);
  }

  get length() {
    return this.#items.length;
  }

  clear() {
    this.#items = [];
    this.#viewport.scrollTop = 0;
    this.#soon();
  }

  add(items) {
    this.#items.push(...items);
    this.#soon();
  }

  /** Replaces all items; the place in the list is kept. */
  set(items) {
    this.#items = items;
    this.#soon();
  }

  #soon() {
    if (this.#pending) return;
    this.#pending = true;
    requestAnimationFrame(() => {
      this.#pending = false;
      this.#show();
    });
  }

  #show() {
    const total = this.#items.length;
    this.#space.style.height = `${total * HEIGHT}px`;
    this.element.setAttribute("aria-rowcount", String(total + 1));
    const top = this.#viewport.scrollTop;
    const first = Math.max(0, Math.floor(top / HEIGHT) - SPARE);
    const last = Math.min(total, Math.ceil((top + this.#viewport.clientHeight) / HEIGHT) + SPARE);
    const focused = document.activeElement?.closest?.("[data-at]")?.dataset.at;
    const rows = [];
    for (let at = first; at < last; at += 1) {
      const row = h("div", { class: "row", role: "row", "aria-rowindex": String(at + 2), "data-at": String(at) },
        this.#draw(this.#items[at]).map((cell) => h("span", { role: "cell" }, cell)));
      row.style.top = `${at * HEIGHT}px`;
      rows.push(row);
    }
    show(this.#space, rows);
    // Keyboard users stay where they are.
    if (focused !== undefined) this.#space.querySelector(`[data-at="${focused}"] a`)?.focus({ preventScroll: true });
    if (last === total) this.#nearEnd();
  }
}

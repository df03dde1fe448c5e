// All shards as cells, coloured by owner. Only cells that change are drawn again.

import { announce, h, setText } from "./dom.js";
import { count } from "./format.js";

const GAP = 1;
/** How long a shard that has moved stands out. */
const FLASH_MS = 900;

export class ShardMap {
  #live;
  #canvas;
  #detail;
  #cell = 10;
  #columns = 1;
  #scale = 1;
  #palette = [];
  #selected = 0;
  /** The shards that have just moved, and when. */
  #flashing = new Map();
  #frame = 0;

  constructor(live) {
    this.#live = live;
    this.#canvas = h("canvas", {
      class: "map", tabindex: "0", role: "application", "aria-roledescription": "shard map", "aria-describedby": "map-detail",
      onpointermove: (event) => this.#select(this.#at(event)),
      onpointerdown: (event) => this.#select(this.#at(event)),
      onkeydown: (event) => this.#key(event),
    });
    this.#detail = h("p", { id: "map-detail", class: "muted map-detail" }, "Point at a shard, or use the arrow keys.");
    this.element = h("div", { class: "map-frame" }, this.#canvas, this.#detail);
    new ResizeObserver(() => this.draw()).observe(this.element);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.draw());
  }

  /** Draws all cells. */
  draw() {
    const width = this.element.clientWidth;
    const total = this.#live.shards.length;
    if (width === 0 || total === 0) return;
    const style = getComputedStyle(document.documentElement);
    const colour = (name) => style.getPropertyValue(name).trim();
    this.#palette = Array.from({ length: 8 }, (_, at) => colour(`--node-${at}`));
    this.#palette.none = colour("--cell-none");
    this.#palette.moving = colour("--cell-moving");
    this.#palette.flash = colour("--text");
    // Few shards get large cells.
    this.#cell = Math.max(6, Math.min(28, Math.floor(Math.sqrt((width * 260) / total))));
    this.#columns = Math.max(1, Math.floor(width / this.#cell));
    const height = Math.ceil(total / this.#columns) * this.#cell;
    this.#scale = Math.min(devicePixelRatio || 1, 3);
    this.#canvas.width = width * this.#scale;
    this.#canvas.height = height * this.#scale;
    this.#canvas.style.height = `${height}px`;
    const context = this.#context();
    for (let at = 0; at < total; at += 1) this.#drawCell(context, at);
    this.#canvas.setAttribute("aria-label", this.#summary());
  }

  /** A shard has changed. */
  changed(shard) {
    this.#flashing.set(shard - 1, performance.now());
    if (this.#frame === 0) this.#frame = requestAnimationFrame(() => this.#animate());
    if (shard === this.#selected) this.#describe();
  }

  #context() {
    const context = this.#canvas.getContext("2d");
    context.setTransform(this.#scale, 0, 0, this.#scale, 0, 0);
    return context;
  }

  #animate() {
    this.#frame = 0;
    if (this.#columns === 0 || this.#palette.length === 0) return;
    const context = this.#context();
    const now = performance.now();
    const still = matchMedia("(prefers-reduced-motion: reduce)").matches;
    for (const [at, since] of this.#flashing) {
      if (still || now - since > FLASH_MS) this.#flashing.delete(at);
      this.#drawCell(context, at);
    }
    if (this.#flashing.size > 0) this.#frame = requestAnimationFrame(() => this.#animate());
    else this.#canvas.setAttribute("aria-label", this.#summary());
  }

  #drawCell(context, at) {
    const shard = this.#live.shards[at];
    if (!shard) return;
    const size = this.#cell - GAP;
    const x = (at % this.#columns) * this.#cell;
    const y = Math.floor(at / this.#columns) * this.#cell;
    context.clearRect(x, y, this.#cell, this.#cell);
    context.fillStyle = shard.owner === "" ? this.#palette.none : this.#palette[this.#live.colour(shard.owner) % 8];
    context.fillRect(x, y, size, size);
    if (shard.state === "moving") {
      context.fillStyle = this.#palette.moving;
      context.fillRect(x + size / 4, y + size / 4, size / 2, size / 2);
    } else if (shard.owner === "") {
      context.strokeStyle = this.#palette.moving;
      context.strokeRect(x + 0.5, y + 0.5, size - 1, size - 1);
    }
    const flash = this.#flashing.get(at);
    if (flash !== undefined) {
      context.globalAlpha = Math.max(0, 1 - (performance.now() - flash) / FLASH_MS);
      context.strokeStyle = this.#palette.flash;
      context.lineWidth = 2;
      context.strokeRect(x + 1, y + 1, size - 2, size - 2);
      context.globalAlpha = 1;
      context.lineWidth = 1;
    }
    if (at === this.#selected - 1) {
      context.strokeStyle = this.#palette.flash;
      context.lineWidth = 2;
      context.strokeRect(x, y, size, size);
      context.lineWidth = 1;
    }
  }

  #at(event) {
    const box = this.#canvas.getBoundingClientRect();
    const column = Math.floor((event.clientX - box.left) / this.#cell);
    const row = Math.floor((event.clientY - box.top) / this.#cell);
    return column < this.#columns ? row * this.#columns + column + 1 : 0;
  }

  #key(event) {
    const steps = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: this.#columns, ArrowUp: -this.#columns };
    const step = steps[event.key];
    if (step === undefined) return;
    event.preventDefault();
    this.#select(this.#selected === 0 ? 1 : this.#selected + step);
    announce(this.#detail.textContent);
  }

  #select(shard) {
    if (shard < 1 || shard > this.#live.shards.length || shard === this.#selected) return;
    const before = this.#selected;
    this.#selected = shard;
    const context = this.#context();
    if (before > 0) this.#drawCell(context, before - 1);
    this.#drawCell(context, shard - 1);
    this.#describe();
  }

  #describe() {
    const { owner, state, epoch, target } = this.#live.shards[this.#selected - 1];
    const where = owner === "" ? "has no live owner" : `is at ${owner}`;
    const moves = state === "moving" ? `, moving${target ? ` to ${target}` : ""}` : "";
    setText(this.#detail, `Shard ${count(this.#selected)} ${where}${moves}, epoch ${count(epoch)}.`);
  }

  #summary() {
    const owners = new Map();
    for (const { owner } of this.#live.shards) owners.set(owner, (owners.get(owner) ?? 0) + 1);
    const parts = [...owners].map(([owner, of]) => `${owner === "" ? "without an owner" : owner} ${count(of)}`);
    return `${count(this.#live.shards.length)} shards: ${parts.join(", ")}`;
  }
}

// What the console knows about the cluster, kept up to date while the page is visible.

import { ask, askAll, follow } from "./api.js";
import { number, shardState } from "./format.js";

const NODES_MS = 1000;
const FIGURES_MS = 2000;
const SHARDS_MS = 15000;
const ACCESS_MS = 30000;
const RETRY_MS = 1000;
/** How many events are kept. */
const EVENTS = 5000;
/** Older events say nothing about the shards that were read meanwhile. */
const RECENT_MS = 3000;
const pause = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

/** Fires `access`, `nodes`, `figures`, `shards` (all of them), `shard` (one of them), `events`, `status` and `lost`. */
export class Live extends EventTarget {
  me = null;
  nodes = [];
  manager = "";
  status = null;
  /** By node: the rates between the last two answers. */
  rates = new Map();
  hottest = [];
  /** From shard 1 at index 0: {owner, state, epoch, target}. */
  shards = [];
  /** Oldest first. */
  events = [];
  pauses = [];
  /** Why the node does not answer. */
  lost = null;
  #figures = new Map();
  #stop = new AbortController();
  #colours = new Map();

  start() {
    const signal = this.#stop.signal;
    this.#repeat(ACCESS_MS, async () => this.#access());
    this.#repeat(NODES_MS, async () => this.#nodes());
    this.#repeat(FIGURES_MS, async () => this.#readFigures());
    this.#repeat(SHARDS_MS, async () => this.readShards());
    this.#followEvents(signal);
  }

  stop() {
    this.#stop.abort();
  }

  get mayView() {
    return this.mayEverywhere("view");
  }

  mayEverywhere(permission) {
    return this.me?.everywhere?.includes(permission) ?? false;
  }

  /** Whether the log-in has a permission on a type. */
  may(permission, type) {
    const known = this.me?.types?.find((it) => it.type === type);
    return known?.permissions?.includes(permission) ?? this.mayEverywhere(permission);
  }

  /** The place of a node's colour in the palette: the same as long as the page is open. */
  colour(node) {
    if (!this.#colours.has(node)) this.#colours.set(node, this.#colours.size);
    return this.#colours.get(node);
  }

  #fire(name, detail) {
    this.dispatchEvent(new CustomEvent(name, { detail }));
  }

  /** Calls `work` again and again, while the page is visible. */
  async #repeat(ms, work) {
    const signal = this.#stop.signal;
    while (!signal.aborted) {
      if (!document.hidden) {
        try {
          await work();
          this.#answered();
        } catch (error) {
          if (signal.aborted) return;
          this.#failed(error);
        }
      }
      await pause(ms);
    }
  }

  #answered() {
    if (this.lost === null) return;
    this.lost = null;
    this.#fire("lost");
  }

  #failed(error) {
    // What is not permitted is not shown.
    if (error.code === "access-denied") return;
    this.lost = error;
    this.#fire("lost");
  }

  async #access() {
    this.me = (await ask("who-am-i", {}, this.#stop.signal)).whoAmI;
    this.#fire("access");
  }

  async #nodes() {
    const signal = this.#stop.signal;
    const { nodes } = await ask("nodes", {}, signal);
    this.nodes = nodes.nodes ?? [];
    this.manager = nodes.manager ?? "";
    for (const node of this.nodes) this.colour(node.name);
    this.#fire("nodes");
    if (!this.mayView) return;
    this.status = (await ask("status", {}, signal)).status;
    this.#fire("status");
  }

  async #readFigures() {
    if (!this.mayView) return;
    const frames = await askAll("figures", {}, this.#stop.signal);
    const nodes = frames.flatMap((frame) => frame.figures?.nodes ?? []);
    const hottest = [];
    for (const node of nodes) {
      const metric = (name) => number(node.metrics?.[name]);
      const now = { uptime: number(node.uptimeMs), messages: metric("messages"), turns: metric("turns") };
      const before = this.#figures.get(node.node);
      const seconds = before && now.uptime > before.uptime ? (now.uptime - before.uptime) / 1000 : 0;
      const of = (name) => (seconds > 0 ? (now[name] - before[name]) / seconds : undefined);
      this.rates.set(node.node, {
        messages: of("messages"), turns: of("turns"), live: metric("live_instances"), memory: metric("live_memory_bytes"),
      });
      if (seconds >= 1 || !before) this.#figures.set(node.node, now);
      hottest.push(...(node.hottest ?? []));
    }
    this.hottest = hottest.sort((a, b) => number(b.turnsPerSecond) - number(a.turnsPerSecond)).slice(0, 10);
    this.#fire("figures");
  }

  /** Reads all shards; between two readings, events tell what changes. */
  async readShards() {
    if (!this.mayView) return;
    const shards = [];
    for (const frame of await askAll("shards", {}, this.#stop.signal)) {
      for (const it of frame.shards?.shards ?? []) {
        shards[it.shard - 1] = { owner: it.owner ?? "", state: shardState(it), epoch: number(it.epoch), target: it.targetNode ?? "" };
      }
    }
    this.shards = shards;
    this.pauses = (await ask("pauses", {}, this.#stop.signal)).pauses?.pauses ?? [];
    this.#fire("shards");
  }

  async #followEvents(signal) {
    let next = 0;
    while (!signal.aborted) {
      try {
        if (this.me === null) await this.#access();
        if (this.mayView) {
          await follow("events", { follow: true, fromSequence: String(next) }, (frame) => {
            const page = frame.events;
            if (!page?.events) return;
            const isOld = next === 0;
            next = number(page.events.at(-1).sequence) + 1;
            this.#happened(page.events, isOld);
            if (number(page.missed) > 0) this.readShards().catch(() => {});
          }, signal);
        }
      } catch (error) {
        if (signal.aborted) return;
        this.#failed(error);
        // Another start of the node counts its events anew.
        if (error.status === 0) next = 0;
      }
      await pause(RETRY_MS);
    }
  }

  #happened(events, isFirst) {
    if (isFirst) this.events = [];
    this.events.push(...events);
    if (this.events.length > EVENTS) this.events.splice(0, this.events.length - EVENTS);
    let paused = false;
    for (const event of events) {
      // The shards were read later than that.
      if (number(event.ageMs) > RECENT_MS) continue;
      if (event.kind === "node-dead") this.#died(event.node);
      const shard = this.shards[event.shard - 1];
      if (!shard) continue;
      if (event.kind === "hand-off-started") shard.state = "moving";
      else if (event.kind === "hand-off-failed") shard.state = "assigned";
      else if (event.kind === "shard-assigned" && number(event.epoch) >= shard.epoch) {
        Object.assign(shard, { owner: event.node, state: "assigned", epoch: number(event.epoch), target: "" });
        paused = true;
      } else continue;
      this.#fire("shard", event.shard);
    }
    if (paused) this.#readPausesSoon();
    this.#fire("events", events);
  }

  #died(node) {
    this.shards.forEach((shard, at) => {
      if (shard.owner !== node) return;
      Object.assign(shard, { owner: "", state: "unassigned" });
      this.#fire("shard", at + 1);
    });
  }

  #reading = false;
  async #readPausesSoon() {
    if (this.#reading) return;
    this.#reading = true;
    await pause(1000);
    this.#reading = false;
    try {
      this.pauses = (await ask("pauses", {}, this.#stop.signal)).pauses?.pauses ?? [];
      this.#fire("pauses");
    } catch {
      // The next reading gets them.
    }
  }
}

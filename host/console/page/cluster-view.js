// The cluster: its nodes, and where its shards are.

import { ask, follow } from "./api.js";
import { confirmed } from "./confirm.js";
import { announce, foreign, h, setText, show } from "./dom.js";
import { bytes, count, duration, nodeStatus, number, rate } from "./format.js";
import { ShardMap } from "./shard-map.js";

/** A node whose row says `live`, but to which the answering node has no connection, is shown as unreachable. */
export function shownStatus(node) {
  const status = nodeStatus(node);
  return status === "live" && node.reachable === false ? "unreachable" : status;
}

export function clusterView(live, main) {
  const summary = h("p", { class: "summary", id: "cluster-summary" });
  const problems = h("div");
  const cards = h("ul", { class: "cards" });
  const hottest = h("section", { hidden: true });
  const map = new ShardMap(live);
  const mapSection = h("section", { hidden: !live.mayView },
    h("h2", null, "Shards"), map.element);
  const rebalance = h("button", { type: "button", onclick: () => run("Rebalance", "rebalance", {}, live) }, "Rebalance");
  const known = new Map();

  const drawNodes = () => {
    const gone = new Set(known.keys());
    // Former nodes only fill the page.
    const nodes = live.nodes.filter((it) => !(nodeStatus(it) === "left" && !number(it.shards)));
    nodes.forEach((node, at) => {
      gone.delete(node.name);
      if (!known.has(node.name)) known.set(node.name, new NodeCard(live, node.name));
      const card = known.get(node.name);
      card.draw(node);
      if (cards.children[at] !== card.element) cards.insertBefore(card.element, cards.children[at] ?? null);
    });
    for (const name of gone) {
      known.get(name).element.remove();
      known.delete(name);
    }
    drawSummary();
  };

  const drawSummary = () => {
    const cluster = live.status?.clusterStatus;
    const up = live.nodes.filter((it) => ["live", "draining"].includes(shownStatus(it))).length;
    const parts = [`${count(up)} ${up === 1 ? "node is" : "nodes are"} up`];
    if (cluster) {
      parts.push(`${count(cluster.shardsAssigned)} of ${count(cluster.shards)} shards are served`);
      if (number(cluster.shardsMoving)) parts.push(`${count(cluster.shardsMoving)} are moving`);
      if (number(cluster.shardsUnassigned)) parts.push(`${count(cluster.shardsUnassigned)} have no owner`);
      if (live.manager) parts.push(`${live.manager} is the manager (term ${count(cluster.term)})`);
    }
    setText(summary, `${parts.join("; ")}.`);
    const found = live.status?.problems ?? [];
    show(problems, found.map((it) => h("p", { class: "problem" }, h("strong", null, it.code), " ", foreign(it.message), " ", foreign(it.help ?? ""))));
  };

  const drawHottest = () => {
    hottest.hidden = live.hottest.length === 0;
    show(hottest, h("h2", null, "Hottest entities"),
      h("ol", { class: "hottest" }, live.hottest.map((it) => h("li", null,
        h("a", { href: entityLink(it.type, it.id) }, foreign(`${it.type}/${it.id}`)),
        h("span", { class: "muted" }, ` ${rate(number(it.turnsPerSecond))} turns/s`)))));
  };

  const drawAccess = () => {
    mapSection.hidden = !live.mayView;
    rebalance.hidden = !live.mayEverywhere("operate");
  };

  show(main, h("div", { class: "title" }, h("h1", null, "Cluster"), rebalance), summary, problems,
    h("h2", { class: "hidden" }, "Nodes"), cards, mapSection, hottest);
  drawAccess();
  drawNodes();
  drawHottest();
  map.draw();
  return {
    nodes: drawNodes, status: drawSummary, access: drawAccess,
    figures: () => { drawNodes(); drawHottest(); },
    shards: () => map.draw(),
    shard: (shard) => map.changed(shard),
  };
}

export const entityLink = (type, id) => `#/entities/${encodeURIComponent(type)}/${encodeURIComponent(id)}`;

class NodeCard {
  #live;
  #fields = new Map();
  #status = h("span", { class: "badge" });
  #bar = h("meter", { min: "0", "aria-label": "share of the shards" });
  #actions = h("div", { class: "actions" });
  #shown = "";

  constructor(live, name) {
    this.#live = live;
    const swatch = h("span", { class: `swatch node-${live.colour(name) % 8}`, "aria-hidden": "true" });
    const list = h("dl");
    for (const field of ["Shards", "Messages/s", "Turns/s", "Live entities", "Memory", "Lease", "Roles"]) {
      const value = h("dd");
      this.#fields.set(field, value);
      list.append(h("div", null, h("dt", null, field), value));
    }
    this.element = h("li", { class: "card", "data-node": name },
      h("h3", null, swatch, foreign(name), this.#status), this.#bar, list, this.#actions);
  }

  draw(node) {
    const live = this.#live;
    const status = shownStatus(node);
    setText(this.#status, status);
    this.#status.className = `badge ${status}`;
    const rates = live.rates.get(node.name) ?? {};
    const set = (field, text) => setText(this.#fields.get(field), text);
    const up = status === "live" || status === "draining";
    set("Shards", count(node.shards));
    set("Messages/s", up ? rate(rates.messages) : "–");
    set("Turns/s", up ? rate(rates.turns) : "–");
    set("Live entities", up && rates.live !== undefined ? count(rates.live) : "–");
    set("Memory", up && rates.memory !== undefined ? bytes(rates.memory) : "–");
    set("Lease", this.#lease(node, up));
    set("Roles", (node.roles ?? []).join(", "));
    this.#bar.max = Math.max(1, live.nodes.reduce((sum, it) => sum + number(it.shards), 0));
    this.#bar.value = number(node.shards);
    this.#drawActions(node, status);
  }

  #lease(node, up) {
    const cluster = this.#live.status?.clusterStatus;
    if (node.isSelf && cluster) return `renewed ${duration(number(cluster.sinceRenewalMs))} ago, lasts ${duration(number(cluster.leaseDurationMs))}`;
    return up ? `renewed ${count(node.renewals)} times` : `incarnation ${node.incarnation} has ended`;
  }

  #drawActions(node, status) {
    const live = this.#live;
    const may = live.mayEverywhere("operate") ? status : "";
    if (may === this.#shown) return;
    this.#shown = may;
    const button = (label, request, message, title, text) => h("button", {
      type: "button",
      onclick: async () => {
        if (await confirmed(title, text, label)) run(title, request, message, live);
      },
    }, label);
    const name = node.name;
    const actions = {
      live: () => button("Drain", "drain", { node: name }, `Drain ${name}?`, "Its shards move to other nodes, and it gets no others until the drain is undone."),
      draining: () => button("Undo drain", "drain", { node: name, undo: true }, `Undo the drain of ${name}?`, "It may own shards again."),
      dead: () => button("Forget", "forget", { node: name }, `Forget ${name}?`, "Only for a node that is lost for good. If it starts again, it registers anew."),
    };
    show(this.#actions, actions[may]?.());
  }
}

/** Sends an operator's request, and says how it goes. */
async function run(title, request, message, live) {
  const what = title.replace(/\?$/, "");
  try {
    announce(`${what}: started`);
    if (request === "forget") await ask(request, message);
    else await follow(request, message, () => {});
    announce(`${what}: done`);
    live.readShards().catch(() => {});
  } catch (error) {
    document.dispatchEvent(new CustomEvent("problem", { detail: { what, error } }));
  }
}

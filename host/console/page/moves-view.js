// Hand-offs and fail-overs: which shards moved when, and how long they paused.

import { foreign, h, setText, show } from "./dom.js";
import { count, duration, number, time } from "./format.js";
import { pausePlot } from "./pause-plot.js";
import { Rows } from "./rows.js";

const CAUSES = new Set(["node-dead", "node-left", "node-joined", "drain-started", "drain-cancelled", "manager-changed", "hand-off-failed", "shard-escalated"]);

export function movesView(live, main) {
  const plot = h("div");
  const total = h("p", { class: "muted", role: "status" });
  const rows = new Rows("Moves", ["Time", "Shard", "What", "From", "To", "Took"], (it) => [
    time(it.unixMs), it.shard ? count(it.shard) : "–", it.what, foreign(it.from ?? "–"), foreign(it.to ?? "–"), it.took === undefined ? "–" : duration(it.took),
  ]);
  let pending = 0;
  const draw = () => {
    pending = 0;
    const moves = movesOf(live.events);
    setText(total, `${count(moves.length)} moves and what caused them, newest first, since this node started or in its last 4,096 events.`);
    rows.set(moves.reverse());
  };
  const soon = () => {
    if (pending === 0) pending = setTimeout(draw, 200);
  };
  const drawPauses = () => show(plot, pausePlot(live.pauses));
  show(main, h("h1", null, "Moves"), h("h2", null, "Pauses"), plot, h("h2", null, "History"), total, rows.element);
  drawPauses();
  draw();
  return { events: soon, pauses: drawPauses, shards: drawPauses, close: () => clearTimeout(pending) };
}

/** Pairs the start of each move with its end. */
export function movesOf(events) {
  const owners = new Map();
  const started = new Map();
  const moves = [];
  for (const event of events) {
    const at = number(event.unixMs);
    if (event.kind === "hand-off-started") started.set(event.shard, { at, from: event.node });
    else if (event.kind === "shard-assigned") {
      const start = started.get(event.shard);
      started.delete(event.shard);
      const from = start?.from ?? owners.get(event.shard);
      owners.set(event.shard, event.node);
      const what = start ? "hand-off" : from === undefined ? "first owner" : "fail-over";
      moves.push({ unixMs: at, shard: event.shard, what, from, to: event.node, took: start ? at - start.at : undefined });
    } else if (CAUSES.has(event.kind)) moves.push({ unixMs: at, shard: event.shard, what: event.kind, from: event.node });
  }
  return moves;
}

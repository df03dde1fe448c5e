// How long shards paused, over time.

import { h, svg } from "./dom.js";
import { count, duration, number, time } from "./format.js";

const WIDTH = 720;
const HEIGHT = 220;
const LEFT = 56;
const BOTTOM = 24;
/** In milliseconds. */
const DECADES = [0.1, 1, 10, 100, 1000, 10000, 100000];

export function pausePlot(pauses) {
  if (pauses.length === 0) return h("p", { class: "muted" }, "No shard has paused since this node started.");
  const first = number(pauses[0].unixMs);
  const last = Math.max(number(pauses.at(-1).unixMs), first + 1000);
  const x = (ms) => LEFT + ((ms - first) / (last - first)) * (WIDTH - LEFT - 8);
  const height = HEIGHT - BOTTOM - 8;
  const y = (ms) => 8 + height - (Math.log10(Math.min(Math.max(ms, 0.1), 100000) / 0.1) / 6) * height;
  const lines = DECADES.map((ms) => [
    svg("line", { class: "grid", x1: LEFT, x2: WIDTH - 8, y1: y(ms), y2: y(ms) }),
    svg("text", { x: LEFT - 6, y: y(ms) + 4, "text-anchor": "end" }, duration(ms)),
  ]);
  const marks = pauses.map((pause) => {
    const [at, length] = [x(number(pause.unixMs)), y(number(pause.durationUs) / 1000)];
    return pause.failOver
      ? svg("rect", { class: "fail-over", x: at - 3, y: length - 3, width: 6, height: 6 })
      : svg("circle", { class: "hand-off", cx: at, cy: length, r: 3 });
  });
  const plot = svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, class: "plot", role: "img", "aria-label": summary(pauses) },
    lines, svg("text", { x: LEFT, y: HEIGHT - 6 }, time(first)), svg("text", { x: WIDTH - 8, y: HEIGHT - 6, "text-anchor": "end" }, time(last)), marks);
  const legend = h("p", { class: "legend" }, h("span", { class: "key hand-off", "aria-hidden": "true" }, "●"), " hand-off  ",
    h("span", { class: "key fail-over", "aria-hidden": "true" }, "■"), " fail-over");
  return [h("p", null, summary(pauses)), plot, legend];
}

function summary(pauses) {
  const parts = [["hand-offs", false], ["fail-overs", true]].map(([name, failOver]) => {
    const sorted = pauses.filter((it) => Boolean(it.failOver) === failOver).map((it) => number(it.durationUs) / 1000).sort((a, b) => a - b);
    if (sorted.length === 0) return `no ${name}`;
    const at = (part) => duration(sorted[Math.min(sorted.length - 1, Math.floor(sorted.length * part))]);
    return `${count(sorted.length)} ${name} (median ${at(0.5)}, 99 % within ${at(0.99)}, longest ${at(1)})`;
  });
  return `Pauses of shards as this node saw them: ${parts.join("; ")}.`;
}

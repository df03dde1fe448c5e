// What happens in the cluster, as the answering node sees it.

import { foreign, h, setText, show } from "./dom.js";
import { count, time } from "./format.js";
import { Rows } from "./rows.js";

export function eventsView(live, main) {
  const kind = h("select", { onchange: () => draw() });
  const held = h("input", { type: "checkbox", onchange: () => draw() });
  const total = h("p", { class: "muted", role: "status" });
  const rows = new Rows("Events", ["Time", "Event", "Node", "Shard", "Text"], (it) => [
    time(it.unixMs), foreign(it.kind), foreign(it.node ?? "–"), it.shard ? count(it.shard) : "–", foreign(it.message ?? ""),
  ]);
  let pending = 0;

  const draw = () => {
    pending = 0;
    if (held.checked) return;
    const kinds = [...new Set(live.events.map((it) => it.kind))].sort();
    if (kinds.join("\n") !== kind.dataset.names) {
      kind.dataset.names = kinds.join("\n");
      const chosen = kind.value;
      show(kind, h("option", { value: "" }, "all events"), kinds.map((it) => h("option", { value: it, selected: it === chosen }, it)));
    }
    const shown = live.events.filter((it) => kind.value === "" || it.kind === kind.value);
    setText(total, `${count(shown.length)} events, newest first`);
    rows.set(shown.reverse());
  };
  const soon = () => {
    if (pending === 0) pending = setTimeout(draw, 200);
  };

  show(main, h("h1", null, "Events"),
    h("form", { class: "filters", onsubmit: (event) => event.preventDefault() }, h("label", null, "Show ", kind), h("label", null, held, " Hold")),
    total, rows.element);
  draw();
  return { events: soon, close: () => clearTimeout(pending) };
}

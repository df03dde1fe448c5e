// All entities, page by page; one can be opened by its name.

import { ask } from "./api.js";
import { entityLink } from "./cluster-view.js";
import { foreign, h, setText, show } from "./dom.js";
import { bytes, count } from "./format.js";
import { Rows } from "./rows.js";
import { TypeChoice } from "./type-choice.js";

const PAGE = 500;

export function entitiesView(live, main, report) {
  let cursor;
  let reading = null;
  const type = new TypeChoice(live, () => begin());
  const id = h("input", { name: "id", placeholder: "id", autocomplete: "off", "aria-label": "Id of the entity" });
  const shard = h("input", { name: "shard", type: "number", min: "1", placeholder: "all", autocomplete: "off" });
  const total = h("p", { class: "muted", role: "status", id: "entities-total" });
  const rows = new Rows("Entities", ["Entity", "Shard", "Owner", "Version", "State", "In memory"], (it) => [
    h("a", { href: entityLink(it.type, it.id) }, foreign(`${it.type}/${it.id}`)),
    count(it.shard), foreign(it.owner ?? "–"), count(it.version), bytes(it.stateBytes),
    it.active === undefined ? "unknown" : it.active ? "yes" : "no",
  ], () => more());

  const begin = () => {
    reading?.abort();
    reading = null;
    cursor = "";
    rows.clear();
    more();
  };

  /** Reads the next page. */
  const more = async () => {
    if (reading !== null || cursor === undefined) return;
    const abort = new AbortController();
    reading = abort;
    setText(total, rows.length === 0 ? "Reading …" : `${count(rows.length)} entities, reading more …`);
    try {
      const message = { type: type.value, shard: Number(shard.value) || 0, limit: PAGE, cursor };
      const page = (await ask("entities", message, abort.signal)).entities;
      cursor = page.nextCursor;
      reading = null;
      rows.add(page.entities ?? []);
      setText(total, cursor === undefined ? `${count(rows.length)} entities` : `${count(rows.length)} entities, scroll for more`);
    } catch (error) {
      if (abort.signal.aborted) return;
      reading = null;
      cursor = undefined;
      setText(total, "");
      report("List entities", error);
    }
  };

  const form = h("form", {
    class: "filters",
    onsubmit: (event) => {
      event.preventDefault();
      const name = type.value || live.me?.types?.[0]?.type;
      if (id.value !== "" && name) location.hash = entityLink(name, id.value);
      else begin();
    },
    onchange: (event) => {
      if (event.target === shard) begin();
    },
  },
  h("label", null, "Type ", type.element), h("label", null, "Shard ", shard),
  h("label", null, "Open ", id), h("button", { type: "submit" }, "Show"));
  show(main, h("h1", null, "Entities"), form, total, rows.element);
  type.draw();
  return { access: () => type.draw(), close: () => reading?.abort() };
}

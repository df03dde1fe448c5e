// Tells that their targets refused or kept failing.

import { ask } from "./api.js";
import { entityLink } from "./cluster-view.js";
import { foreign, h, setText, show, table } from "./dom.js";
import { bytes, count, time } from "./format.js";
import { TypeChoice } from "./type-choice.js";

const PAGE = 100;

export function deadLettersView(live, main, report) {
  const abort = new AbortController();
  const list = h("div");
  const status = h("p", { class: "muted", role: "status" });
  const next = h("button", { type: "button", hidden: true, onclick: () => read(cursor) }, "Next page");
  const type = new TypeChoice(live, () => read(""));
  let cursor = "";

  const read = async (from) => {
    try {
      const { deadLetters } = await ask("dead-letters", { type: type.value, limit: PAGE, cursor: from }, abort.signal);
      const letters = deadLetters.deadLetters ?? [];
      cursor = deadLetters.nextCursor ?? "";
      next.hidden = cursor === "";
      setText(status, `${count(letters.length)} on this page. \`ostraca dead-letters resend TYPE/ID\` and \`drop\` handle them.`);
      const rows = letters.map((it) => [
        h("a", { href: entityLink(it.type, it.id) }, foreign(`${it.type}/${it.id}`)),
        h("a", { href: entityLink(it.tell?.type ?? "", it.tell?.id ?? "") }, foreign(`${it.tell?.type}/${it.tell?.id}`)),
        foreign(it.tell?.method ?? ""), time(it.unixMs), bytes(it.tell?.bodySize), count(it.tell?.attempts), foreign(it.tell?.failure ?? ""),
      ]);
      show(list, table("Dead letters", ["Sender", "Target", "Method", "Sent", "Size", "Attempts", "Failure"], rows, "No dead letters."));
    } catch (error) {
      if (!abort.signal.aborted) report("List the dead letters", error);
    }
  };

  show(main, h("h1", null, "Dead letters"),
    h("form", { class: "filters", onsubmit: (event) => { event.preventDefault(); read(""); } }, h("label", null, "Senders of type ", type.element), h("button", { type: "submit" }, "Read again")),
    status, list, next);
  type.draw();
  return { access: () => type.draw(), close: () => abort.abort() };
}

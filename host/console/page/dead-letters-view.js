// Tells that their targets refused or kept failing.

import { ask, handleDeadLetters } from "./api.js";
import { entityLink } from "./cluster-view.js";
import { confirmed } from "./confirm.js";
import { foreign, h, setText, show, table, visible } from "./dom.js";
import { bytes, count, time } from "./format.js";
import { TypeChoice } from "./type-choice.js";

/** No more than one request may name. */
const PAGE = 100;
/** What may be done with dead letters: the button's label, what has then been done, and what a dialog says of it. */
const ACTIONS = {
  resend: ["Resend", "resent", "A resent tell follows all others to its target. If the target still refuses it, it comes back with a new number."],
  drop: ["Drop", "dropped", "What is dropped is deleted, and cannot be brought back."],
};

export function deadLettersView(live, main, report) {
  const abort = new AbortController();
  const title = h("h1", { tabindex: "-1" }, "Dead letters");
  const list = h("div");
  const status = h("p", { class: "muted", role: "status" });
  const all = h("div", { class: "actions" });
  const next = h("button", { type: "button", hidden: true, onclick: () => read(cursor) }, "Next page");
  const type = new TypeChoice(live, () => read(""));
  let [page, cursor, shown] = ["", "", []];
  let rights = "";

  const may = (letter) => live.may("manage", letter.type);
  const handle = async (action, letters) => {
    const [label, done, meaning] = ACTIONS[action];
    const what = letters.length === 1 ? "this dead letter" : `these ${count(letters.length)} dead letters`;
    if (!(await confirmed(`${label} ${what}?`, meaning, label))) return;
    const handled = await handleAll(action, letters, (error) => report(`${label} dead letters`, error));
    await read(page, `${count(handled)} of ${count(letters.length)} ${done}. `);
    // The button that was used is gone.
    (list.querySelector("button") ?? title).focus();
  };

  const buttons = (letters, of) => Object.entries(ACTIONS).map(([action, [label]]) => h("button", {
    type: "button", "aria-label": `${label} ${of}`, onclick: () => handle(action, letters),
  }, letters.length === 1 ? label : `${label} ${of}`));

  const rightsNow = () => shown.map(may).join();
  const draw = () => {
    rights = rightsNow();
    const mine = shown.filter(may);
    const columns = ["Sender", "Target", "Method", "Sent", "Size", "Attempts", "Failure", ...(mine.length > 0 ? ["Actions"] : [])];
    const rows = shown.map((it) => [
      h("a", { href: entityLink(it.type, it.id) }, foreign(`${it.type}/${it.id}`)),
      h("a", { href: entityLink(it.tell?.type ?? "", it.tell?.id ?? "") }, foreign(`${it.tell?.type}/${it.tell?.id}`)),
      foreign(it.tell?.method ?? ""), time(it.unixMs), bytes(it.tell?.bodySize), count(it.tell?.attempts), foreign(it.tell?.failure ?? ""),
      ...(mine.length > 0 ? [may(it) ? h("div", { class: "actions" }, buttons([it], `dead letter ${numberOf(it)} of ${visible(`${it.type}/${it.id}`)}`)) : ""] : []),
    ]);
    show(list, table("Dead letters", columns, rows, "No dead letters."));
    show(all, mine.length > 1 ? buttons(mine, `all ${count(mine.length)} of this page`) : []);
  };

  const read = async (from, happened = "") => {
    try {
      const { deadLetters } = await ask("dead-letters", { type: type.value, limit: PAGE, cursor: from }, abort.signal);
      const letters = deadLetters.deadLetters ?? [];
      // All of a later page were handled: there may be others before it.
      if (letters.length === 0 && from !== "") return await read("", happened);
      [page, cursor, shown] = [from, deadLetters.nextCursor ?? "", letters];
      next.hidden = cursor === "";
      setText(status, `${happened}${count(shown.length)} on this page, as of ${time(Date.now())}`);
      draw();
    } catch (error) {
      if (!abort.signal.aborted) report("List the dead letters", error);
    }
  };

  show(main, title,
    h("form", { class: "filters", onsubmit: (event) => { event.preventDefault(); read(""); } }, h("label", null, "Senders of type ", type.element), h("button", { type: "submit" }, "Read again")),
    status, all, list, next);
  type.draw();
  return {
    access: () => {
      type.draw();
      // Whoever is at a button stays there.
      if (rights !== rightsNow()) draw();
    },
    close: () => abort.abort(),
  };
}

const numberOf = (letter) => letter.tell?.number ?? "0";

/** Handles dead letters, sender by sender; resolves to how many. Those that somebody else has handled are left out. */
async function handleAll(action, letters, failed) {
  let handled = 0;
  const senders = Map.groupBy(letters, (it) => JSON.stringify([it.type, it.id]));
  for (const [sender, some] of senders) {
    let left = some.map(numberOf);
    while (left.length > 0) {
      try {
        // A request handles fewer if their bodies are large.
        const done = new Set(await handleDeadLetters(...JSON.parse(sender), action, left));
        if (done.size === 0) break;
        handled += done.size;
        left = left.filter((number) => !done.has(number));
      } catch (error) {
        if (error.code === "unknown-dead-letter") break;
        failed(error);
        return handled;
      }
    }
  }
  return handled;
}

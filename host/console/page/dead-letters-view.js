// Tells that their targets refused or kept failing.

import { ask, handleDeadLetters } from "./api.js";
import { entityLink } from "./cluster-view.js";
import { confirmed } from "./confirm.js";
import { announce, foreign, h, setText, show, table, visible } from "./dom.js";
import { bytes, count, time } from "./format.js";
import { TypeChoice } from "./type-choice.js";

const PAGE = 100;
/** What may be done with dead letters: the button's label, what has then been done, and what a dialog says of it. */
const ACTIONS = {
  resend: ["Resend", "resent", "Each is sent again, after all other tells to its target. If the target still refuses it, it comes back with a new number."],
  drop: ["Drop", "dropped", "They are deleted, and cannot be brought back."],
};

export function deadLettersView(live, main, report) {
  const abort = new AbortController();
  const list = h("div");
  const status = h("p", { class: "muted", role: "status" });
  const all = h("div", { class: "actions" });
  const next = h("button", { type: "button", hidden: true, onclick: () => read(cursor) }, "Next page");
  const type = new TypeChoice(live, () => read(""));
  let [page, cursor, shown] = ["", "", []];
  let rights = "";

  const handle = async (action, letters) => {
    const [label, done, meaning] = ACTIONS[action];
    const what = letters.length === 1 ? "this dead letter" : `these ${count(letters.length)} dead letters`;
    if (!(await confirmed(`${label} ${what}?`, meaning, label))) return;
    try {
      announce(`${count(await handleAll(action, letters))} ${done}`);
    } catch (error) {
      report(`${label} dead letters`, error);
    }
    await read(page);
  };

  const buttons = (letters, of) => Object.entries(ACTIONS).map(([action, [label]]) => h("button", {
    type: "button", "aria-label": `${label} ${of}`, onclick: () => handle(action, letters),
  }, letters.length === 1 ? label : `${label} ${of}`));

  const rightsNow = () => shown.map((it) => live.may("manage", it.type)).join();
  const draw = () => {
    rights = rightsNow();
    const rows = shown.map((it) => [
      h("a", { href: entityLink(it.type, it.id) }, foreign(`${it.type}/${it.id}`)),
      h("a", { href: entityLink(it.tell?.type ?? "", it.tell?.id ?? "") }, foreign(`${it.tell?.type}/${it.tell?.id}`)),
      foreign(it.tell?.method ?? ""), time(it.unixMs), bytes(it.tell?.bodySize), count(it.tell?.attempts), foreign(it.tell?.failure ?? ""),
      live.may("manage", it.type) ? h("div", { class: "actions" }, buttons([it], `dead letter ${numberOf(it)} of ${visible(`${it.type}/${it.id}`)}`)) : "",
    ]);
    show(list, table("Dead letters", ["Sender", "Target", "Method", "Sent", "Size", "Attempts", "Failure", "Actions"], rows, "No dead letters."));
    const mine = shown.filter((it) => live.may("manage", it.type));
    show(all, mine.length > 1 ? buttons(mine, `all ${count(mine.length)} of this page`) : []);
  };

  const read = async (from) => {
    try {
      const { deadLetters } = await ask("dead-letters", { type: type.value, limit: PAGE, cursor: from }, abort.signal);
      [page, cursor, shown] = [from, deadLetters.nextCursor ?? "", deadLetters.deadLetters ?? []];
      next.hidden = cursor === "";
      setText(status, `${count(shown.length)} on this page, as of ${time(Date.now())}`);
      draw();
    } catch (error) {
      if (!abort.signal.aborted) report("List the dead letters", error);
    }
  };

  show(main, h("h1", null, "Dead letters"),
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
/** How many one request may name. */
const MOST = 256;

/** Handles dead letters, sender by sender; resolves to how many. Those that somebody else has handled are left out. */
async function handleAll(action, letters) {
  let handled = 0;
  const senders = Map.groupBy(letters, (it) => JSON.stringify([it.type, it.id]));
  for (const [sender, some] of senders) {
    const [type, id] = JSON.parse(sender);
    let left = some.map(numberOf);
    while (left.length > 0) {
      const asked = left.slice(0, MOST);
      try {
        // A request handles fewer if their bodies are large.
        const done = new Set(await handleDeadLetters(type, id, action, asked));
        handled += done.size;
        left = left.filter((number) => !done.has(number));
      } catch (error) {
        if (error.code !== "unknown-dead-letter") throw error;
        left = left.slice(asked.length);
      }
    }
  }
  return handled;
}

// Asks before something is changed.

import { h } from "./dom.js";

/** Shows a dialog with a text or fields; resolves to whether it was confirmed. */
export function confirmed(title, content, action) {
  return new Promise((resolve) => {
    // The browser checks the fields, and does not close the dialog while one of them is wrong.
    const dialog = h("dialog", { "aria-labelledby": "dialog-title" },
      h("form", { method: "dialog" },
        h("h2", { id: "dialog-title" }, title),
        typeof content === "string" ? h("p", null, content) : content,
        h("div", { class: "actions" },
          h("button", { type: "button", autofocus: true, onclick: () => dialog.close("no") }, "Cancel"),
          h("button", { type: "submit", value: "yes", class: "primary" }, action))));
    dialog.addEventListener("close", () => {
      dialog.remove();
      resolve(dialog.returnValue === "yes");
    });
    document.body.append(dialog);
    dialog.showModal();
  });
}

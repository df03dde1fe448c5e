// Asks before something is changed.

import { h } from "./dom.js";

/** Shows a dialog; resolves to whether it was confirmed. */
export function confirmed(title, text, action) {
  return new Promise((resolve) => {
    const dialog = h("dialog", { "aria-labelledby": "dialog-title" },
      h("h2", { id: "dialog-title" }, title),
      h("p", null, text),
      h("div", { class: "actions" },
        h("button", { type: "button", onclick: () => dialog.close("no") }, "Cancel"),
        h("button", { type: "button", class: "primary", onclick: () => dialog.close("yes") }, action)));
    dialog.addEventListener("close", () => {
      dialog.remove();
      resolve(dialog.returnValue === "yes");
    });
    document.body.append(dialog);
    dialog.showModal();
  });
}

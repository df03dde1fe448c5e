// Builds elements. Children are elements or texts; a text never becomes markup.

/** An element: h("p", {class: "x", onclick: f}, "text", other). Attributes that are null or false are left out. */
export function h(name, attributes, ...children) {
  return fill(document.createElement(name), attributes, children);
}

/** The same for SVG. */
export function svg(name, attributes, ...children) {
  return fill(document.createElementNS("http://www.w3.org/2000/svg", name), attributes, children);
}

function fill(element, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (typeof value === "function") element.addEventListener(name.slice(2), value);
    else if (value === true) element.setAttribute(name, "");
    else element.setAttribute(name, String(value));
  }
  element.append(...children.flat(Infinity).filter((it) => it !== null && it !== undefined));
  return element;
}

/** Replaces an element's children. */
export function show(element, ...children) {
  element.replaceChildren(...children.flat(Infinity).filter((it) => it !== null && it !== undefined));
  return element;
}

/** Sets an element's text, if it is another one. */
export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** A text that people elsewhere chose: it cannot change the direction of what surrounds it. */
export function foreign(text) {
  return h("bdi", { class: "foreign" }, visible(text));
}

/** Shows control characters instead of following them. */
export function visible(text) {
  return String(text).replace(/[\u0000-\u001f\u007f\u2028\u2029\u202a-\u202e\u2066-\u2069\u200b-\u200f\ufeff]/gu, (it) => {
    const code = it.codePointAt(0);
    return code < 32 ? String.fromCodePoint(0x2400 + code) : "\ufffd";
  });
}

/** A table with a caption for screen readers. Cells are elements or texts. */
export function table(caption, columns, rows, empty) {
  if (rows.length === 0) return h("p", { class: "muted" }, empty);
  const head = columns.map((it) => h("th", { scope: "col" }, it));
  const body = rows.map((row) => h("tr", null, row.map((cell, at) => h("td", { "data-label": columns[at] }, cell))));
  return h("div", { class: "scroll", tabindex: "0", role: "region", "aria-label": caption },
    h("table", null, h("caption", { class: "hidden" }, caption), h("thead", null, h("tr", null, head)), h("tbody", null, body)));
}

/** Says something to screen readers. */
export function announce(text) {
  setText(document.getElementById("announcements"), text);
}

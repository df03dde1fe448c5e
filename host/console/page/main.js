// The page: who is logged in, which section is shown, and what went wrong.

import { ask, logIn, logOut } from "./api.js";
import { clusterView } from "./cluster-view.js";
import { deadLettersView } from "./dead-letters-view.js";
import { foreign, h, setText, show } from "./dom.js";
import { entitiesView } from "./entities-view.js";
import { entityView } from "./entity-view.js";
import { eventsView } from "./events-view.js";
import { Live } from "./live.js";
import { movesView } from "./moves-view.js";
import { typesView } from "./types-view.js";

const main = document.getElementById("main");
const nav = document.getElementById("nav");
const session = document.getElementById("session");
const notice = document.getElementById("notice");

const SECTIONS = [
  ["cluster", "Cluster", clusterView],
  ["entities", "Entities", entitiesView],
  ["types", "Types", typesView],
  ["moves", "Moves", movesView],
  ["dead-letters", "Dead letters", deadLettersView],
  ["events", "Events", eventsView],
];

let live = null;
/** What the shown section wants to hear of. */
let view = {};

function report(what, error) {
  if (error.needsLogin) return loggedOut(error);
  show(notice, h("p", null, h("strong", null, what), ": ", foreign(error.message), " ", foreign(error.help ?? ""), " ",
    error.code ? h("code", null, foreign(error.code)) : null),
  h("button", { type: "button", onclick: () => show(notice) }, "Close"));
}

function route() {
  if (live === null) return;
  view.close?.();
  view = {};
  const [section, ...rest] = location.hash.replace(/^#\/?/, "").split("/");
  const found = SECTIONS.find(([name]) => name === section) ?? SECTIONS[0];
  for (const link of nav.querySelectorAll("a")) {
    const isCurrent = link.getAttribute("href") === `#/${found[0]}`;
    if (isCurrent) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  document.title = `${found[1]} – Ostraca console`;
  try {
    if (found[0] === "entities" && rest.length === 2) {
      const [type, id] = rest.map(decodeURIComponent);
      view = entityView(live, main, report, type, id);
      document.title = `${type}/${id} – Ostraca console`;
    } else view = found[2](live, main, report);
  } catch (error) {
    report("Show this page", error);
  }
}

function loggedIn() {
  show(nav, SECTIONS.map(([name, title]) => h("a", { href: `#/${name}` }, title)));
  live = new Live();
  for (const name of ["access", "nodes", "status", "figures", "shards", "shard", "events", "pauses"]) {
    live.addEventListener(name, (event) => view[name]?.(event.detail));
  }
  live.addEventListener("access", drawSession);
  live.addEventListener("nodes", drawSession);
  live.addEventListener("lost", () => {
    if (live?.lost?.needsLogin) return loggedOut(live.lost);
    setText(notice, live?.lost ? `${live.lost.message} The console tries again.` : "");
  });
  return live;
}

function drawSession() {
  const self = live.nodes.find((it) => it.isSelf);
  const text = `${live.me.principal}${self ? ` at ${self.name}` : ""}`;
  if (session.dataset.text === text) return;
  session.dataset.text = text;
  show(session, h("span", { class: "who" }, foreign(text)), h("button", { type: "button", onclick: leave }, "Log out"));
}

async function leave() {
  try {
    await logOut();
    loggedOut(null);
  } catch (error) {
    report("Log out", error);
  }
}

function loggedOut(error) {
  view.close?.();
  view = {};
  live?.stop();
  live = null;
  show(nav);
  show(session);
  delete session.dataset.text;
  show(notice);
  document.title = "Log in – Ostraca console";
  const token = h("input", { id: "token", type: "password", autocomplete: "off", required: true, spellcheck: "false" });
  const wrong = h("p", { class: "problem", role: "alert", hidden: true });
  const fail = (text) => {
    wrong.hidden = text === "";
    setText(wrong, text);
  };
  show(main, h("form", {
    class: "login",
    onsubmit: async (event) => {
      event.preventDefault();
      try {
        await logIn({ token: token.value.trim() });
        token.value = "";
        await begin();
      } catch (problem) {
        fail(`${problem.message} ${problem.help ?? ""}`);
      }
    },
  },
  h("h1", null, "Log in"),
  h("p", null, "Enter a token of this cluster, such as one that ", h("code", null, "ostraca token issue NAME"), " prints. Its roles decide what you see and may do."),
  h("label", { for: "token" }, "Token"), token, wrong,
  h("button", { type: "submit", class: "primary" }, "Log in")));
  if (error && error.code !== "unauthenticated") fail(`${error.message} ${error.help ?? ""}`);
  token.focus();
}

/** Begins with the cookie, if there is a valid one. */
async function begin() {
  const { whoAmI } = await ask("who-am-i");
  loggedIn();
  live.me = whoAmI;
  live.start();
  drawSession();
  route();
}

async function start() {
  const link = /^#link=([0-9a-f]{32})$/.exec(location.hash);
  if (link) {
    // The secret must not stay in the history.
    history.replaceState(null, "", location.pathname);
    try {
      await logIn({ link: link[1] });
    } catch (error) {
      // The browser may be logged in already.
      if (!error.needsLogin) report("Log in", error);
    }
  }
  try {
    await begin();
  } catch (error) {
    if (error.needsLogin) loggedOut(error);
    else {
      report("Start", error);
      setTimeout(start, 2000);
    }
  }
}

addEventListener("hashchange", route);
document.addEventListener("problem", (event) => report(event.detail.what, event.detail.error));
start();

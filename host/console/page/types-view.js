// The deployed types, their revisions and roll-outs.

import { ask, askAll } from "./api.js";
import { confirmed } from "./confirm.js";
import { foreign, h, setText, show, table } from "./dom.js";
import { bytes, count, number, time } from "./format.js";
import { chosenRollout } from "./rollout-form.js";

const REFRESH_MS = 2000;

export function typesView(live, main, report) {
  const abort = new AbortController();
  const list = h("div", { class: "columns" });
  const status = h("p", { class: "muted", role: "status" });
  let timer = 0;
  let drawn = "";

  const refresh = async () => {
    clearTimeout(timer);
    try {
      if (!document.hidden) {
        const frames = await askAll("deployments", {}, abort.signal);
        const all = frames.flatMap((frame) => frame.deployments?.deployments ?? []);
        setText(status, `${count(all.length)} types, as of ${time(Date.now())}`);
        const text = JSON.stringify(all);
        if (text !== drawn) {
          drawn = text;
          show(list, all.length === 0 ? h("p", { class: "muted" }, "Nothing is deployed yet: ostraca deploy") : all.map((it) => typePart(live, it, refresh, report)));
        }
      }
    } catch (error) {
      if (abort.signal.aborted) return;
      report("List the types", error);
    }
    timer = setTimeout(refresh, REFRESH_MS);
  };

  show(main, h("h1", null, "Types"), status, list);
  refresh();
  return {
    access: () => {
      drawn = "";
    },
    close: () => {
      abort.abort();
      clearTimeout(timer);
    },
  };
}

const short = (digest) => [...atob(digest ?? "")].slice(0, 6).map((it) => it.charCodeAt(0).toString(16).padStart(2, "0")).join("");

function typePart(live, it, refresh, report) {
  const may = live.may("deploy", it.type);
  /** A button that sends what `choose` resolves to, unless that is `null`. */
  const activating = (label, choose) => h("button", {
    type: "button",
    onclick: async () => {
      const chosen = await choose();
      if (chosen === null) return;
      try {
        await ask("activate", { type: it.type, ...chosen });
        await refresh();
      } catch (error) {
        report(label, error);
      }
    },
  }, label);
  const rollOut = (action, revision, question) => activating(action, async () => {
    const chosen = await chosenRollout({ action, ...question });
    return chosen === null ? null : { revision: String(revision), ...chosen };
  });
  const activation = (revision) => rollOut(`Activate ${revision}`, revision, {
    title: `Activate revision ${revision} of ${it.type}?`, others: it.revision,
    warning: it.rollout ? `Revision ${it.revision} is being rolled out: this ends that, and all entities that it has not reached run it, too.` : "",
  });
  const change = () => rollOut("Change the rollout", it.revision, {
    title: `Which entities run revision ${it.revision} of ${it.type}?`, now: it.rollout, others: it.rollout.from,
  });
  const rollBack = () => activating("Roll back", async () => {
    const text = `Revision ${it.rollout.from} becomes the current one for all entities, under a new number. That is refused if the state cannot be migrated back.`;
    return (await confirmed(`Roll ${it.type} back?`, text, "Roll back")) ? { revision: String(it.rollout.from) } : null;
  });
  const rows = (it.revisions ?? []).map((stored) => [
    count(stored.revision), short(stored.digest), bytes(stored.componentSize), count(stored.schema), stored.inactive ? "never active" : "was active",
    may ? activation(stored.revision) : "",
  ]);
  return h("section", { class: "part", "data-type": it.type },
    h("h2", null, foreign(it.type)),
    h("dl", { class: "facts" }, [
      ["Revision", count(it.revision)], ["Component", `${short(it.digest)}, ${bytes(it.componentSize)}`], ["Schema", count(it.schema)], ["Pool", foreign(it.pool ?? "")],
    ].map(([name, value]) => h("div", null, h("dt", null, name), h("dd", null, value)))),
    it.rollout ? rollout(it) : null,
    it.rollout && may ? h("div", { class: "actions" }, change(), rollBack()) : null,
    rows.length > 0 ? table(`Other revisions of ${it.type}`, ["Revision", "Digest", "Size", "Schema", "State", ""], rows, "") : null);
}

function rollout(it) {
  const { perMille, shards, rate, from, stopped } = it.rollout;
  const meter = h("meter", { min: "0", max: "1000", value: String(number(perMille)), "aria-label": "entities that run the new revision, out of 1,000" });
  return h("div", null,
    h("p", null, `Rolled out to ${count(perMille)} of 1,000 entities and the first ${count(shards)} shards${number(rate) > 0 ? `, ${count(rate)} more each minute` : ""}; the others run revision ${count(from)}. `, meter),
    stopped ? h("p", { class: "problem" }, "Stopped: ", foreign(stopped)) : null);
}


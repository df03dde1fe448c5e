// One entity: its state, what is planned and kept for it, and a form that sends messages to it.

import { ask } from "./api.js";
import { foreign, h, setText, show, table } from "./dom.js";
import { bytes, count, duration, number, textOfBase64, time } from "./format.js";
import { sendForm } from "./send-form.js";

export function entityView(live, main, report, type, id) {
  const abort = new AbortController();
  const detail = h("div", { class: "columns" });
  const status = h("p", { class: "muted", role: "status" });
  const form = h("section", null);
  const values = h("input", { type: "checkbox", onchange: () => refresh() });
  const withValues = h("label", { hidden: true }, values, " Show values");
  let timer = 0;

  const refresh = async () => {
    clearTimeout(timer);
    try {
      const message = { type, id, values: values.checked };
      const { entity } = await ask("inspect", message, abort.signal);
      draw(entity);
      setText(status, `As of ${time(Date.now())}`);
    } catch (error) {
      if (abort.signal.aborted) return;
      report(`Read ${type}/${id}`, error);
    }
    timer = setTimeout(() => (document.hidden ? (timer = setTimeout(refresh, 2000)) : refresh()), 2000);
  };

  let drawn = "";
  const draw = (entity) => {
    const text = JSON.stringify(entity);
    if (text === drawn) return;
    drawn = text;
    show(detail, overview(entity), state(entity), awake(entity), timers(entity), tells(entity), streams(entity));
  };

  const drawAccess = () => {
    withValues.hidden = !live.may("read-state", type);
  };
  show(main,
    h("nav", { "aria-label": "Path" }, h("a", { href: "#/entities" }, "Entities")),
    h("h1", null, foreign(`${type}/${id}`)),
    h("div", { class: "title" }, status, withValues), form, detail);
  drawAccess();
  refresh();
  sendForm(live, form, type, id, refresh).catch((error) => {
    if (!abort.signal.aborted) report(`Read the methods of ${type}`, error);
  });
  return {
    access: drawAccess,
    close: () => {
      abort.abort();
      clearTimeout(timer);
    },
  };
}

function part(title, ...content) {
  return h("section", { class: "part" }, h("h2", null, title), content);
}

function facts(pairs) {
  const shown = pairs.filter(([, value]) => value !== undefined && value !== null && value !== "");
  return h("dl", { class: "facts" }, shown.map(([name, value]) => h("div", null, h("dt", null, name), h("dd", null, value))));
}

function overview(entity) {
  const exists = entity.exists ? "yes" : entity.deleted ? "deleted" : "never written";
  const failure = entity.lastFailure;
  return part("Overview",
    facts([
      ["Exists", exists],
      ["Shard", `${count(entity.shard)}, epoch ${count(entity.epoch)}`],
      ["Owner", foreign(entity.owner ?? "none")],
      ["Version", count(entity.version)],
      ["Revision", entity.runningRevision ? `${count(entity.revision)}, runs ${count(entity.runningRevision)}` : count(entity.revision)],
      ["Schema", count(entity.schema)],
      ["In memory", entity.active === undefined ? "unknown" : entity.active ? "yes" : "no"],
      ["Mailbox", entity.mailboxLength === undefined ? undefined : `${count(entity.mailboxLength)} messages`],
      ["Lanes", `${count(entity.laneCount)}, ${count(entity.unsettledReplies)} recorded replies`],
      ["Remembered", entity.remembered ? "yes" : undefined],
      ["Deleted before", number(entity.generation) ? `${count(entity.generation)} times` : undefined],
      ["Expires", entity.expiresUnixMs ? time(entity.expiresUnixMs) : undefined],
    ]),
    entity.unresponsiveOwner ? h("p", { class: "problem" }, "The owner does not answer: ", foreign(entity.unresponsiveOwner.reason)) : null,
    failure ? h("p", { class: "problem" }, h("strong", null, foreign(failure.code)), " ", foreign(failure.message),
      h("span", { class: "muted" }, ` ${time(failure.unixMs)}, ${count(failure.consecutiveFailures)} in a row`)) : null,
    entity.failedMigration ? h("p", { class: "problem" }, `Not migrated to revision ${count(entity.failedMigration.revision)}: `, foreign(entity.failedMigration.reason)) : null);
}

function state(entity) {
  const keys = entity.keys ?? [];
  const withValues = keys.some((it) => it.value !== undefined);
  const rows = keys.map((it) => [foreign(it.key), bytes(it.size), ...(withValues ? [h("code", null, foreign(textOfBase64(it.value)))] : [])]);
  const more = number(entity.keyCount) - keys.length;
  return part(`State: ${count(entity.keyCount)} keys, ${bytes(entity.stateBytes)}`,
    table("State", ["Key", "Size", ...(withValues ? ["Value"] : [])], rows, "No keys."),
    more > 0 ? h("p", { class: "muted" }, `and ${count(more)} more`) : null);
}

function awake(entity) {
  const { awake: reasons = [], stoppedBy, failedStarts, startPauseMs } = entity.activity ?? {};
  if (reasons.length === 0 && !stoppedBy && !failedStarts) return null;
  const pause = startPauseMs === undefined ? "" : `, the next start is in ${duration(number(startPauseMs))}`;
  return part("Why it is awake",
    reasons.length > 0 ? h("ul", null, reasons.map((it) => h("li", null, foreign(reasonText(it))))) : h("p", { class: "muted" }, "It has no instance."),
    stoppedBy ? h("p", { class: "problem" }, "Stopped after: ", foreign(stoppedBy)) : null,
    failedStarts ? h("p", { class: "problem" }, `${count(failedStarts)} starts in a row have failed${pause}`) : null);
}

const REASONS = {
  "awaits-slot": () => "waits for a place in memory",
  "starting": () => "is being started",
  "runs-message": () => "runs a message",
  "runs-timer": () => "runs a timer",
  "stopping": () => "is being stopped",
  "asks": (it) => `waits for ${count(it.count)} other entities`,
  "http-calls": (it) => `waits for ${count(it.count)} HTTP calls`,
  "messages": (it) => `has ${count(it.count)} messages to run`,
  "commits": (it) => `has ${count(it.count)} commits that are not durable yet`,
  "timer-due": (it) => `has a timer that is due in ${duration(number(it.endsInMs))}`,
  "remembered": () => "is remembered",
  "idle": (it) => `is idle, and stays for ${duration(number(it.endsInMs))}`,
  "passivates": (it) => `leaves memory in ${duration(number(it.endsInMs))}`,
};

/** Later releases may have other reasons. */
function reasonText(it) {
  return REASONS[it.reason]?.(it) ?? it.reason;
}

function timers(entity) {
  const rows = (entity.timers ?? []).map((it) => [
    foreign(it.name), time(it.dueUnixMs), number(it.intervalMs) ? `every ${count(it.intervalMs)} ms` : "once",
    it.setAside ? "set aside" : number(it.attempts) ? `${count(it.attempts)} failed attempts` : "", foreign(it.failure ?? ""),
  ]);
  return number(entity.timerCount) === 0 ? null : part(`Timers: ${count(entity.timerCount)}`,
    table("Timers", ["Name", "Due", "Repeats", "State", "Failure"], rows, ""));
}

function tellRows(tells) {
  return (tells ?? []).map((it) => [count(it.number), foreign(`${it.type}/${it.id}`), foreign(it.method), bytes(it.bodySize), count(it.attempts), foreign(it.failure ?? "")]);
}

const TELLS = ["Number", "To", "Method", "Size", "Attempts", "Failure"];

function tells(entity) {
  return [
    number(entity.outboxCount) ? part(`Outbox: ${count(entity.outboxCount)} tells`, table("Outbox", TELLS, tellRows(entity.outbox), "")) : null,
    number(entity.delayedTellCount) ? part(`Delayed tells: ${count(entity.delayedTellCount)}`,
      table("Delayed tells", ["Name", "Leaves", "To", "Method", "Failure"], (entity.delayedTells ?? []).map((it) => [
        foreign(it.name), time(it.dueUnixMs), foreign(`${it.tell?.type ?? ""}/${it.tell?.id ?? ""}`), foreign(it.tell?.method ?? ""), foreign(it.tell?.failure ?? ""),
      ]), "")) : null,
    number(entity.deadLetterCount) ? part(`Dead letters: ${count(entity.deadLetterCount)}`, table("Dead letters", TELLS, tellRows(entity.deadLetters), "")) : null,
  ];
}

function streams(entity) {
  const journal = entity.journal;
  return [
    journal ? part("Journal", facts([
      ["Kept events", `${count(journal.firstNumber)} to ${count(number(journal.nextNumber) - 1)}`],
      ["Size", bytes(journal.bytes)],
      ["Snapshot through", journal.snapshotThrough === undefined ? "none" : count(journal.snapshotThrough)],
    ])) : null,
    (entity.channels ?? []).length ? part("Channels", table("Channels", ["Name", "Kept items", "Size", "Last version"],
      entity.channels.map((it) => [foreign(it.name), `${count(it.firstNumber)} to ${count(number(it.nextNumber) - 1)}`, bytes(it.bytes), count(it.lastVersion)]), "")) : null,
    (entity.subscriptions ?? []).length ? part(`Subscriptions: ${count(entity.subscriptionCount)}`, table("Subscriptions", ["Channel", "Subscriber", "Method"],
      entity.subscriptions.map((it) => [foreign(it.channel), foreign(`${it.type}/${it.id}`), foreign(it.method)]), "")) : null,
  ];
}

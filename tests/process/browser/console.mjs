// The console in a real browser. The test in Rust starts this with a cluster of three nodes, and does what this asks for:
// a line `do NAME` on the standard output is answered with a line when it is done.

import assert from "node:assert/strict";
import { createServer } from "node:http";
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { chromium } from "playwright-core";
import { please } from "./wishes.mjs";

const { CHROMIUM, LETTERS, URLS, OPERATOR, VIEWER, LINK, SHARDS, ENTITIES, HOSTILE, SCREENSHOTS } = process.env;
const urls = JSON.parse(URLS);
const [shards, entities] = [Number(SHARDS), Number(ENTITIES)];
const hostile = JSON.parse(HOSTILE);
const axe = readFileSync(createRequire(import.meta.url).resolve("axe-core/axe.min.js"), "utf8");
/** A bound of liveness: what is waited for has happened by then. */
const SOON = 60_000;

const say = (text) => console.log(text);

const browser = await chromium.launch({ executablePath: CHROMIUM, args: ["--no-sandbox", "--disable-dev-shm-usage"] });
const faults = [];

async function newPage(options = {}) {
  const context = await browser.newContext({ viewport: { width: 1280, height: 900 }, ...options });
  context.setDefaultTimeout(SOON);
  const page = await context.newPage();
  page.on("pageerror", (error) => faults.push(`page error: ${error.stack ?? error}`));
  page.on("dialog", (dialog) => {
    faults.push(`a dialog: ${dialog.message()}`);
    dialog.dismiss();
  });
  page.on("console", (message) => {
    const text = message.text();
    // A refused or cut-off request is logged by the browser itself.
    if (message.type() === "error" && !text.startsWith("Failed to load resource")) faults.push(text);
  });
  // Everything comes from the node.
  page.on("request", (request) => {
    if (!urls.some((url) => request.url().startsWith(url)) && !request.url().startsWith("data:")) faults.push(`asked for ${request.url()}`);
  });
  return page;
}

async function logIn(page, token, url = urls[0]) {
  await page.goto(`${url}/`);
  await page.getByLabel("Token").fill(token);
  await page.getByRole("button", { name: "Log in" }).click();
  await page.getByRole("heading", { name: "Cluster", exact: true }).waitFor();
}

const card = (page, node) => page.locator(`.card[data-node="${node}"]`);
const statusOf = (page, node) => card(page, node).locator(".badge").innerText();
const shardsOf = async (page, node) => Number((await card(page, node).locator("dd").first().innerText()).replaceAll(",", ""));
async function until(what, check) {
  const began = Date.now();
  for (;;) {
    const value = await check();
    if (value) return Date.now() - began;
    assert(Date.now() - began < SOON, `${what}: not within ${SOON} ms`);
    await new Promise((resolve) => setTimeout(resolve, 20));
  }
}
const sees = (page, what, node, status) => until(what, async () => (await statusOf(page, node)) === status);

async function screenshot(page, name, options = {}) {
  if (SCREENSHOTS) await page.screenshot({ path: `${SCREENSHOTS}/${name}.png`, ...options });
}

/** Checks the page against the rules of WCAG 2.1 AA that can be checked by a program, contrast among them. */
async function isAccessible(page, what) {
  await page.evaluate(axe);
  const { violations } = await page.evaluate(() => window.axe.run(document, { runOnly: ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa"] }));
  const found = violations.map((it) => `${it.id}: ${it.nodes.map((node) => `${node.target} ${node.failureSummary}`).join("; ")}`);
  assert.deepEqual(found, [], `${what}: ${found.join("\n")}`);
}

async function loggingIn() {
  const page = await newPage();
  await page.goto(`${urls[0]}/`);
  await page.getByLabel("Token").fill("nonsense");
  await page.getByRole("button", { name: "Log in" }).click();
  await page.getByText("get another token").waitFor();
  await isAccessible(page, "log-in");
  // By keyboard alone.
  await page.getByLabel("Token").fill(OPERATOR);
  await page.getByLabel("Token").press("Enter");
  await page.getByRole("heading", { name: "Cluster", exact: true }).waitFor();
  // No script can read the token, and it is in no address.
  const [cookies, address] = await page.evaluate(() => [document.cookie, location.href]);
  assert.equal(cookies, "");
  assert(!address.includes(OPERATOR));
  const [cookie] = await page.context().cookies();
  assert(cookie.name.startsWith("__Host-") && cookie.httpOnly && cookie.secure && cookie.sameSite === "Strict", JSON.stringify(cookie));
  // A log-in lasts over a reload, and ends by the button.
  await page.reload();
  await page.getByRole("heading", { name: "Cluster", exact: true }).waitFor();
  await page.getByRole("button", { name: "Log out" }).click();
  await page.getByLabel("Token").waitFor();
  await page.reload();
  await page.getByLabel("Token").waitFor();
  await page.close();
}

async function linking() {
  const page = await newPage();
  await page.goto(LINK);
  await page.getByRole("heading", { name: "Cluster", exact: true }).waitFor();
  assert(!page.url().includes("link"), page.url());
  await page.context().clearCookies();
  await page.goto("about:blank");
  await page.goto(LINK);
  await page.getByLabel("Token").waitFor();
  await page.close();
}

async function watching(page) {
  await until("three nodes", async () => (await page.locator(".card").count()) === 3);
  for (const node of ["n1", "n2", "n3"]) await sees(page, `${node} is live`, node, "live");
  const map = page.locator("canvas.map");
  const summary = () => map.getAttribute("aria-label");
  await until("all shards", async () => (await summary())?.startsWith(`${shards.toLocaleString("en")} shards: `));
  await until("rates", async () => /[0-9]/.test(await card(page, "n1").locator("dd").nth(1).innerText()));
  // The keyboard reaches each shard.
  await map.focus();
  await page.keyboard.press("ArrowRight");
  await page.keyboard.press("ArrowRight");
  assert.match(await page.locator("#map-detail").innerText(), /^Shard 2 is at n[123].* epoch/);
  for (const colorScheme of ["light", "dark"]) {
    await page.emulateMedia({ colorScheme });
    await isAccessible(page, `cluster, ${colorScheme}`);
    await screenshot(page, `console-${colorScheme}`);
  }
  await page.emulateMedia({ colorScheme: "light" });
}

async function draining(page) {
  const before = await shardsOf(page, "n3");
  assert(before > 0);
  await card(page, "n3").getByRole("button", { name: "Drain" }).click();
  await page.getByRole("dialog").getByRole("button", { name: "Cancel" }).click();
  await card(page, "n3").getByRole("button", { name: "Drain" }).click();
  await page.getByRole("dialog").getByRole("button", { name: "Drain" }).click();
  const seen = new Set();
  await until("n3 has no shards", async () => {
    const [status, left] = [await statusOf(page, "n3"), await shardsOf(page, "n3")];
    seen.add(left);
    return status === "draining" && left === 0;
  });
  // It was shown as it happened, not when it had ended.
  const between = [...seen].filter((it) => it > 0 && it < before);
  assert(between.length > 0, `seen: ${[...seen]}`);
  await until("the map shows it", async () => !(await page.locator("canvas.map").getAttribute("aria-label")).includes("n3 "));
  await page.goto(`${urls[0]}/console/#/moves`);
  await page.getByText(/[1-9][0-9,]* hand-offs \(median/).waitFor();
  await until("moves in the history", async () => (await page.locator(".rows .row").count()) > 10);
  await isAccessible(page, "moves");
  await screenshot(page, "console-moves");
  await page.goto(`${urls[0]}/console/#/cluster`);
  await card(page, "n3").getByRole("button", { name: "Undo drain" }).click();
  await page.getByRole("dialog").getByRole("button", { name: "Undo drain" }).click();
  await sees(page, "n3 is live again", "n3", "live");
  say(`the drain was shown in ${seen.size} steps`);
}

async function sending(page) {
  await page.goto(`${urls[0]}/console/#/entities/counter/alice`);
  await page.getByLabel("Method").selectOption({ label: "add (command)" });
  const field = page.locator(".send .fields input").first();
  await field.fill("five");
  await page.getByRole("button", { name: "Send" }).click();
  await page.getByText("not an integer").waitFor();
  await field.fill("5");
  await page.getByRole("button", { name: "Send" }).click();
  await page.locator("#send-result pre").getByText("5", { exact: true }).waitFor();
  await page.locator(".facts div", { hasText: "Version" }).getByText("1", { exact: true }).waitFor();
  await page.getByLabel("Show values").check();
  await page.locator("td code").first().waitFor();
  // The entity's own refusal.
  await page.getByLabel("Write the arguments as JSON").check();
  await page.locator(".send textarea").fill('{"a":1}');
  await page.getByRole("button", { name: "Send" }).click();
  await page.locator("#send-result").getByText("invalid-arguments").waitFor();
  await isAccessible(page, "entity");
  await screenshot(page, "console-entity");
}

async function scrolling(page) {
  await page.evaluate(() => {
    window.long = [];
    new PerformanceObserver((list) => window.long.push(...list.getEntries().map((it) => it.duration))).observe({ type: "longtask", buffered: false });
  });
  const began = Date.now();
  // The same document: its observer goes on.
  await page.evaluate(() => { location.hash = "#/entities"; });
  const viewport = page.locator(".rows-viewport");
  await until("all entities", async () => {
    await viewport.evaluate((element) => { element.scrollTop = element.scrollHeight; });
    const total = await page.locator("#entities-total").innerText();
    return new RegExp(`^${entities.toLocaleString("en")} entities$`).test(total);
  });
  const ms = Date.now() - began;
  for (let part = 0; part <= 20; part += 1) {
    await viewport.evaluate((element, part) => { element.scrollTop = (element.scrollHeight * part) / 20; }, part);
    await page.waitForTimeout(30);
  }
  assert((await page.locator(".rows .row").count()) < 120, "only visible rows are elements");
  await page.evaluate(() => { location.hash = "#/cluster"; });
  await page.locator("canvas.map").waitFor();
  await page.waitForTimeout(1000);
  const longest = await page.evaluate(() => Math.max(0, ...window.long));
  say(`${entities} entities and ${shards} shards: all read in ${ms} ms; the longest task of the page took ${Math.round(longest)} ms`);
  await page.evaluate(() => { location.hash = "#/entities"; });
  await page.getByLabel("Shard").fill("7");
  await page.getByRole("button", { name: "Show" }).click();
  await page.getByLabel("Id of the entity").fill("alice");
  await page.getByLabel("Type").selectOption("counter");
  await isAccessible(page, "entities");
  await page.getByRole("button", { name: "Show" }).click();
  await page.getByRole("heading", { name: "counter/alice" }).waitFor();
}

/** What entities and clients chose appears as text, and nothing of it runs. */
async function showingHostileTexts(page) {
  for (const { type, id, call, shown } of hostile) {
    if (call !== undefined) {
      // Its owner remembers the failure for a while.
      const headers = { authorization: `Bearer ${OPERATOR}` };
      const { status } = await fetch(`${urls[0]}/v1/default/${type}/${id}/call/${call}`, { method: "POST", headers });
      assert.equal(status, 500);
    }
    await page.goto(`${urls[0]}/console/#/entities/${encodeURIComponent(type)}/${encodeURIComponent(id)}`);
    for (const text of shown) await page.getByText(text, { exact: false }).first().waitFor();
    await isAccessible(page, "hostile entity");
  }
  for (const section of ["types", "dead-letters", "events"]) {
    await page.goto(`${urls[0]}/console/#/${section}`);
    await page.getByRole("heading", { level: 1 }).waitFor();
    await page.waitForTimeout(300);
    await isAccessible(page, section);
  }
  await page.goto(`${urls[0]}/console/#/entities/${encodeURIComponent("<img src=x onerror=window.hacked=1>")}/x`);
  await page.locator("#notice").getByText("<img src=x").first().waitFor();
  assert.equal(await page.evaluate(() => window.hacked), undefined);
  assert.equal(await page.locator("main img, main script, main iframe").count(), 0);
  // Even the page's own code cannot make markup of text, or load code from elsewhere.
  assert.equal(await page.evaluate(() => {
    try {
      document.body["inner" + "HTML"] = "<b>x</b>";
      return "made";
    } catch (error) {
      return error.name;
    }
  }), "TypeError");
  const blocked = () => faults.findIndex((it) => it.includes("TrustedHTML"));
  await until("the browser reports it", () => blocked() >= 0);
  faults.splice(blocked(), 1);
}

/** What a page shows to a viewer. */
async function asViewer(section, check) {
  const page = await newPage();
  await logIn(page, VIEWER);
  await page.goto(`${urls[0]}/console/#/${section}`);
  await check(page);
  await page.close();
}

/** A revision is rolled out to a part of the entities, the part grows, and all go back. */
async function rollingOut(page) {
  await page.goto(`${urls[0]}/console/#/types`);
  const part = page.locator('section[data-type="counter"]');
  const dialog = page.getByRole("dialog");
  await part.getByRole("button", { name: "Activate 2" }).click();
  await isAccessible(page, "rollout");
  assert(await dialog.getByLabel("Share").isDisabled(), "all entities, unless a part is chosen");
  await dialog.getByLabel("A part of them").check();
  await dialog.getByLabel("Share").fill("0");
  await dialog.getByRole("button", { name: "Activate 2" }).click();
  assert(await dialog.isVisible(), "a rollout to nobody is not sent");
  await dialog.getByLabel("Share").fill("12.5");
  await screenshot(page, "console-rollout");
  await dialog.getByRole("button", { name: "Activate 2" }).click();
  await part.getByText("Rolled out to 125 of 1,000 entities and the first 0 shards; the others run revision 1.").waitFor();
  await asViewer("types", async (page) => {
    await page.getByText("Rolled out to 125 of 1,000").waitFor();
    assert.equal(await page.getByRole("button", { name: /Activate|Change|Roll back/ }).count(), 0);
  });
  await part.getByRole("button", { name: "Change the rollout" }).click();
  assert.equal(await dialog.getByLabel("Share").inputValue(), "12.5");
  // It advances while the form is open, and does not go back.
  await please("advance");
  await dialog.getByLabel("Share").fill("25");
  await dialog.getByRole("button", { name: "Change the rollout" }).click();
  await part.getByText("Rolled out to 250 of 1,000 entities and the first 7 shards").waitFor();
  await part.getByRole("button", { name: "Change the rollout" }).click();
  await dialog.getByLabel("And the first").fill("3");
  await dialog.getByRole("button", { name: "Change the rollout" }).click();
  await part.getByText("Rolled out to 250 of 1,000 entities and the first 3 shards").waitFor();
  await part.getByRole("button", { name: "Roll back" }).click();
  // By keyboard, Cancel is the first choice.
  await page.keyboard.press("Enter");
  await until("the dialog is closed", async () => (await dialog.count()) === 0);
  await part.getByText("Rolled out to 250 of 1,000").waitFor();
  await part.getByRole("button", { name: "Roll back" }).click();
  await dialog.getByRole("button", { name: "Roll back" }).click();
  await part.locator(".facts div", { hasText: "Revision" }).getByText("3", { exact: true }).waitFor();
  assert.equal(await part.getByText("Rolled out to").count(), 0);
}

/** One dead letter is dropped; the others are resent, one after the other. */
async function handlingDeadLetters(page) {
  const notes = async () => {
    const headers = { authorization: `Bearer ${OPERATOR}` };
    return (await fetch(`${urls[0]}/v1/default/misbehaving/target/call/notes`, { headers })).json();
  };
  await page.goto(`${urls[0]}/console/#/dead-letters`);
  const rows = page.locator("tbody tr");
  await until("all dead letters", async () => (await rows.count()) === Number(LETTERS));
  await asViewer("dead-letters", async (page) => {
    await until("all dead letters", async () => (await page.locator("tbody tr").count()) === Number(LETTERS));
    assert.equal(await page.getByRole("button", { name: /Resend|Drop/ }).count(), 0);
    const status = await page.evaluate(async () => {
      const headers = { "content-type": "application/json" };
      const path = "/v1/default/misbehaving/sender/dead-letters/drop";
      return (await fetch(path, { method: "POST", headers, body: '{"numbers":["1"]}' })).status;
    });
    assert.equal(status, 403);
  });
  const dialog = page.getByRole("dialog");
  await rows.first().getByRole("button", { name: "Drop" }).click();
  await dialog.getByRole("button", { name: "Drop" }).click();
  await until("one fewer", async () => (await rows.count()) === Number(LETTERS) - 1);
  await page.getByText("1 of 1 dropped.").waitFor();
  assert.equal(await page.evaluate(() => document.activeElement.textContent), "Resend");
  await isAccessible(page, "dead letters");
  await screenshot(page, "console-dead-letters");
  assert.deepEqual(await notes(), []);
  // Another operator is faster.
  await please("resend-second");
  await page.getByRole("button", { name: /^Resend all/ }).click();
  await dialog.getByRole("button", { name: "Resend" }).click();
  await page.getByText("No dead letters.").waitFor();
  await page.getByText(`${Number(LETTERS) - 2} of ${Number(LETTERS) - 1} resent.`).waitFor();
  const wanted = [...Array(Number(LETTERS)).keys()].slice(1).map(String);
  await until("all notes", async () => (await notes()).length === wanted.length);
  assert.deepEqual((await notes()).sort(), wanted.sort());
}

async function viewing() {
  const page = await newPage();
  await logIn(page, VIEWER);
  await until("three nodes", async () => (await page.locator(".card").count()) === 3);
  await page.waitForTimeout(1500);
  assert.equal(await page.getByRole("button", { name: /Drain|Rebalance|Forget/ }).count(), 0);
  await page.goto(`${urls[0]}/console/#/entities/counter/alice`);
  await page.locator(".facts div", { hasText: "Version" }).waitFor();
  assert.equal(await page.getByRole("button", { name: "Send" }).count(), 0);
  assert(!(await page.getByLabel("Show values").isVisible()));
  const refused = await page.evaluate(async () => {
    const headers = { "content-type": "application/json" };
    const drain = await fetch("/v1/admin/drain", { method: "POST", headers, body: '{"node":"n1"}' });
    const add = await fetch("/v1/default/counter/alice/call/add", { method: "POST", headers, body: "1" });
    return [drain.status, add.status];
  });
  assert.deepEqual(refused, [403, 403]);
  await page.close();
}

/** A page of another origin cannot use the log-in, even one of the same machine. */
async function crossing(page) {
  const server = createServer((request, response) => response.setHeader("content-type", "text/html").end("<p>evil</p>"));
  const { hostname } = new URL(urls[0]);
  await new Promise((resolve) => server.listen(0, hostname, resolve));
  const evil = await page.context().newPage();
  await evil.goto(`http://${hostname}:${server.address().port}/`);
  const before = await shardsOf(page, "n2");
  const outcomes = await evil.evaluate(async (target) => {
    const attempt = (path, options) => fetch(target + path, { credentials: "include", ...options }).then((it) => it.status, () => "unreadable");
    return Promise.all([
      attempt("/v1/admin/drain", { method: "POST", headers: { "content-type": "application/json" }, body: '{"node":"n2"}' }),
      attempt("/v1/admin/drain", { method: "POST", mode: "no-cors", headers: { "content-type": "text/plain" }, body: '{"node":"n2"}' }),
      attempt("/v1/default/counter/alice/call/add", { method: "POST", mode: "no-cors", body: "1" }),
      attempt("/v1/default/counter/alice/call/get", {}),
      attempt("/v1/default/misbehaving/sender/dead-letters/drop", { method: "POST", mode: "no-cors", body: '{"numbers":["1"]}' }),
      attempt("/console/logout", { method: "POST", mode: "no-cors" }),
    ]);
  }, urls[0]);
  // An opaque response has the status 0.
  assert(outcomes.every((it) => it === "unreadable" || it === 0), JSON.stringify(outcomes));
  const frame = await evil.evaluate((target) => new Promise((resolve) => {
    const frame = document.createElement("iframe");
    frame.onload = () => {
      try {
        resolve(frame.contentDocument === null ? "closed" : "open");
      } catch {
        resolve("closed");
      }
    };
    frame.src = `${target}/console/`;
    document.body.append(frame);
  }), urls[0]);
  assert.equal(frame, "closed");
  await evil.close();
  server.close();
  await page.waitForTimeout(500);
  assert.equal(await statusOf(page, "n2"), "live");
  assert.equal(await shardsOf(page, "n2"), before);
}

async function onAPhone() {
  const page = await newPage({ viewport: { width: 375, height: 740 }, isMobile: true, hasTouch: true, deviceScaleFactor: 2 });
  await logIn(page, OPERATOR, urls[1]);
  await until("three nodes", async () => (await page.locator(".card").count()) === 3);
  for (const section of ["cluster", "entities", "entities/counter/alice", "types", "moves", "dead-letters", "events"]) {
    await page.goto(`${urls[1]}/console/#/${section}`);
    await page.getByRole("heading", { level: 1 }).waitFor();
    await page.waitForTimeout(200);
    const width = await page.evaluate(() => document.documentElement.scrollWidth);
    assert(width <= 375, `${section} is ${width} px wide`);
    if (section === "cluster") await screenshot(page, "console-phone");
  }
  await page.close();
}

async function losingANode(page) {
  await page.goto(`${urls[0]}/console/#/cluster`);
  await sees(page, "n3 is live", "n3", "live");
  await please("kill");
  const ms = await until("n3 is gone", async () => ["unreachable", "lapsed", "dead"].includes(await statusOf(page, "n3")));
  say(`the killed node was shown after ${ms} ms`);
  await sees(page, "n3 is dead", "n3", "dead");
  await until("its shards have owners", async () => !(await page.locator("canvas.map").getAttribute("aria-label")).match(/n3 |without/));
  await page.goto(`${urls[0]}/console/#/moves`);
  await page.getByText(/[1-9][0-9,]* fail-overs \(median/).waitFor();
  await screenshot(page, "console-fail-over");
  await page.goto(`${urls[0]}/console/#/events`);
  await page.getByLabel("Show").selectOption("node-dead");
  await page.locator(".rows .row bdi").getByText("node-dead", { exact: true }).first().waitFor();
}

/** The page says that its own node does not answer, and goes on when it does. */
async function losingItsOwnNode(page) {
  await page.goto(`${urls[0]}/console/#/cluster`);
  await please("pause-own");
  await page.locator("#notice").getByText("does not answer").waitFor();
  await please("resume-own");
  await until("it goes on", async () => (await page.locator("#notice").innerText()) === "");
}

try {
  await loggingIn();
  await linking();
  const page = await newPage();
  await logIn(page, OPERATOR);
  await watching(page);
  await sending(page);
  await page.goto(`${urls[0]}/console/#/cluster`);
  await crossing(page);
  await draining(page);
  await scrolling(page);
  await rollingOut(page);
  await handlingDeadLetters(page);
  await showingHostileTexts(page);
  await viewing();
  await onAPhone();
  await losingANode(page);
  assert.deepEqual(faults, []);
  await losingItsOwnNode(page);
  say("done");
} finally {
  await browser.close();
}
// The pipe to the test would keep it running.
process.exit(0);

// The page of the tutorial in a real browser: money moves in two windows, and a transfer ends although its node is killed.

import assert from "node:assert/strict";
import { chromium } from "playwright-core";
import { please } from "./wishes.mjs";

const { CHROMIUM, PAGE } = process.env;
const SOON = 60_000;

const browser = await chromium.launch({ executablePath: CHROMIUM, args: ["--no-sandbox", "--disable-dev-shm-usage"] });
const context = await browser.newContext();
context.setDefaultTimeout(SOON);
const faults = [];
const [first, second] = [await context.newPage(), await context.newPage()];
for (const page of [first, second]) {
  page.on("pageerror", (error) => faults.push(String(error)));
  await page.goto(PAGE);
}
const shows = async (page, id, value) =>
  page.waitForFunction(([id, value]) => document.getElementById(id).textContent === value, [id, value]);
const message = async (page, text) =>
  page.waitForFunction((text) => document.getElementById("message").textContent.includes(text), text);

// The tutorial has moved 300 of 1,000 cents.
await shows(first, "alice", "700");
await shows(first, "bob", "300");
await first.getByRole("button", { name: "Deposit for alice" }).click();
await message(first, "done: 800 cents are left");
for (const page of [first, second]) {
  await shows(page, "alice", "800");
}
await second.getByLabel("Cents").fill("50");
await second.getByRole("button", { name: "Transfer from alice to bob" }).click();
for (const page of [first, second]) {
  await shows(page, "alice", "750");
  await shows(page, "bob", "350");
}
await first.getByLabel("Cents").fill("5000");
await first.getByRole("button", { name: "Transfer from alice to bob" }).click();
await message(first, "insufficient-funds");

await please("kill");
await first.getByLabel("Cents").fill("150");
await first.getByRole("button", { name: "Transfer from alice to bob" }).click();
await new Promise((resolve) => setTimeout(resolve, 500));
await please("start");
await message(first, "done: 600 cents are left");
for (const page of [first, second]) {
  await shows(page, "alice", "600");
  await shows(page, "bob", "500");
}
assert.deepEqual(faults, []);
await browser.close();
process.exit(0);

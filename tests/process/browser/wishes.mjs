// What a script asks the test in Rust that has started it: a line `do NAME` is answered with a line when it is done.

import assert from "node:assert/strict";
import { createInterface } from "node:readline";

const answers = createInterface({ input: process.stdin })[Symbol.asyncIterator]();

export async function please(name) {
  console.log(`do ${name}`);
  const { done } = await answers.next();
  assert(!done, "the test has ended");
}

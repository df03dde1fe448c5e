// The TypeScript client in Node.js: a request in each line, and an answer with its number.

import { createInterface } from "node:readline";
import { perform } from "./perform.mjs";

const ostraca = await import(process.env.CLIENT);
for await (const line of createInterface({ input: process.stdin })) {
  const { number, request } = JSON.parse(line);
  perform(ostraca, request).then((answer) => console.log(JSON.stringify({ number, answer })));
}
process.exit(0);

// The TypeScript client in Chromium, on a page of an origin of its own.

import { readFile } from "node:fs/promises";
import { createServer } from "node:http";
import { basename, dirname, join } from "node:path";
import { createInterface } from "node:readline";
import { fileURLToPath, pathToFileURL } from "node:url";

const { chromium } = await import(pathToFileURL(join(process.env.PLAYWRIGHT, "index.mjs")).href);
const dist = dirname(fileURLToPath(process.env.CLIENT));
const here = dirname(fileURLToPath(import.meta.url));
const page = `<!doctype html><title>client</title><script type="module">
import { perform } from "./perform.mjs";
const ostraca = await import("./client/index.js");
window.perform = (request) => perform(ostraca, request);
</script>`;

const server = createServer(async ({ url }, response) => {
  const isClient = url.startsWith("/client/");
  const text = url === "/" ? page : await readFile(join(isClient ? dist : here, basename(url))).catch(() => undefined);
  response.writeHead(text === undefined ? 404 : 200, { "content-type": url === "/" ? "text/html" : "text/javascript" });
  response.end(text);
});
await new Promise((listening) => server.listen(Number(process.env.PORT), "127.0.0.1", listening));
const args = ["--no-sandbox", "--disable-gpu", "--no-first-run"];
args.push("--disable-background-networking", "--disable-component-update", "--disable-sync");
// These origins are asked over HTTP/3 at once, and their certificates' key is accepted.
const { QUIC, KEY } = process.env;
if (QUIC !== undefined) {
  args.push(`--origin-to-force-quic-on=${QUIC}`, `--ignore-certificate-errors-spki-list=${KEY}`);
}
const browser = await chromium.launch({ executablePath: process.env.CHROMIUM, args });
// A page of HTTPS would not open either; WebTransport does not care.
const tab = await browser.newPage({ ignoreHTTPSErrors: true });
/** The protocols of the gateways' responses. */
const protocols = new Set();
const network = await tab.context().newCDPSession(tab);
await network.send("Network.enable");
network.on("Network.responseReceived", ({ response }) => {
  if (response.url.startsWith("https:")) {
    protocols.add(response.protocol);
  }
});
await tab.goto(`http://localhost:${process.env.PORT}/`);
await tab.waitForFunction(() => window.perform !== undefined);
for await (const line of createInterface({ input: process.stdin })) {
  const { number, request } = JSON.parse(line);
  if (request.op === "protocols") {
    console.log(JSON.stringify({ number, answer: [...protocols] }));
    continue;
  }
  tab
    .evaluate((request) => window.perform(request), request)
    .then((answer) => console.log(JSON.stringify({ number, answer })))
    .catch((error) => console.error(error));
}
await browser.close();
process.exit(0);

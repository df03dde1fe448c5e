/** Calls entities of an Ostraca cluster over HTTP. `docs/clients.md` in Ostraca's repository explains it. */

export { type ChannelEvent, type ChannelOptions } from "./channel.js";
export { Client, type ClientOptions, Entity } from "./client.js";
export { type CallOptions, type Reply } from "./call.js";
export { type WebTransportOptions, webTransport } from "./webtransport.js";
export { CallError, ChannelError, OstracaError, type Outcome } from "./errors.js";

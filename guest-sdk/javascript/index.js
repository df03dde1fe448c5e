// What an entity in JavaScript is made of. `docs/guests-javascript.md` in Ostraca's repository explains it.

export { Refusal, entity } from "./entity.js";
export * from "./host.js";
export * as types from "./public-types.js";

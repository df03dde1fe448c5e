// Uses typed calls as an application does.

import { CallError, Client } from "ostraca";
import { AccountEntity } from "./account.js";
import { CartEntity, type Status } from "./cart.js";
import { CounterEntity } from "./counter.js";

declare const process: { env: Record<string, string | undefined> };

const { ADDRESSES = "", TOKEN = "" } = process.env;
const client = new Client(ADDRESSES.split(","), { token: TOKEN });
const counter = new CounterEntity(client, "typed-typescript");
const sum: number = await counter.add(5, { key: true });
await counter.limit(7);
const code = await counter.add(5).then(
  () => "added",
  (error: unknown) => (error instanceof CallError ? error.code : String(error)),
);
const account = new AccountEntity(client, "typed-typescript");
await account.deposit(500);
await account.withdraw(200);
const balance: number = await account.balance();
const status: Status = (await new CartEntity(client, "typed-typescript").contents()).status;
console.log(sum, code, await counter.get(), balance, status);

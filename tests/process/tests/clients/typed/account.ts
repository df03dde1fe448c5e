// Typed calls of the entity type account, revision 1. Written by `ostraca client`.

import type { CallOptions, Client, Entity } from "ostraca";

/** An entity of the type account. */
export class AccountEntity {
  /** The entity, for calls by name and for channels. */
  readonly entity: Entity;

  constructor(client: Client, id: string) {
    this.entity = client.entity("account", id);
  }

  /** Deposits an amount in cents and returns the new balance. */
  async deposit(cents: number, options?: CallOptions): Promise<number> {
    return (await this.entity.command<number>("deposit", { cents }, options)).value;
  }

  /** Withdraws an amount in cents and returns the new balance. */
  async withdraw(cents: number, options?: CallOptions): Promise<number> {
    return (await this.entity.command<number>("withdraw", { cents }, options)).value;
  }

  /** Returns the balance in cents. */
  async balance(options?: CallOptions): Promise<number> {
    return (await this.entity.query<number>("balance", undefined, options)).value;
  }

  /** Sets how many cents the balance may go below zero. */
  async overdraft(cents: number, options?: CallOptions): Promise<void> {
    return (await this.entity.command<void>("overdraft", { cents }, options)).value;
  }

  /** Returns the last entries, one page at a time, oldest first. */
  async history(limit?: number | null, cursor?: string | null, options?: CallOptions): Promise<unknown> {
    return (await this.entity.query<unknown>("history", { limit, cursor }, options)).value;
  }
}

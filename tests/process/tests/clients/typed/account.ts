// Typed calls of the entity type account, revision 1. Written by `ostraca client`.

import type { CallOptions, Client, Entity } from "ostraca";

/** An entity of the type account. */
export class AccountEntity {
  /** The entity, for calls by name and for channels. */
  readonly entity: Entity;

  constructor(client: Client, id: string) {
    this.entity = client.entity("account", id);
  }

  async deposit(cents: number, options?: CallOptions): Promise<number> {
    return (await this.entity.command<number>("deposit", { cents }, options)).value;
  }

  async withdraw(cents: number, options?: CallOptions): Promise<number> {
    return (await this.entity.command<number>("withdraw", { cents }, options)).value;
  }

  async balance(options?: CallOptions): Promise<number> {
    return (await this.entity.query<number>("balance", undefined, options)).value;
  }

  async overdraft(cents: number, options?: CallOptions): Promise<void> {
    return (await this.entity.command<void>("overdraft", { cents }, options)).value;
  }

  async history(limit?: number | null, cursor?: string | null, options?: CallOptions): Promise<unknown> {
    return (await this.entity.query<unknown>("history", { limit, cursor }, options)).value;
  }
}

// Typed calls of the entity type counter, revision 1. Written by `ostraca client`.

import type { CallOptions, Client, Entity } from "ostraca";

/** An entity of the type counter. */
export class CounterEntity {
  /** The entity, for calls by name and for channels. */
  readonly entity: Entity;

  constructor(client: Client, id: string) {
    this.entity = client.entity("counter", id);
  }

  /** Adds to the counter and returns the new value. */
  async add(by: number, options?: CallOptions): Promise<number> {
    return (await this.entity.command<number>("add", { by }, options)).value;
  }

  /** Returns the current value. */
  async get(options?: CallOptions): Promise<number> {
    return (await this.entity.query<number>("get", undefined, options)).value;
  }

  /** Resets the counter to zero and returns the previous value. */
  async reset(options?: CallOptions): Promise<number> {
    return (await this.entity.command<number>("reset", undefined, options)).value;
  }

  /** Sets the highest value that the counter may reach; `null` removes the limit. */
  async limit(at?: number | null, options?: CallOptions): Promise<void> {
    return (await this.entity.command<void>("limit", { at }, options)).value;
  }
}

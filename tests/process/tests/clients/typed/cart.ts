// Typed calls of the entity type cart, revision 1. Written by `ostraca client`.

import type { CallOptions, Client, Entity } from "ostraca";

/** The state of one cart, built from its events. */
export interface Cart {
  /** What is in the cart, by item. */
  lines: Record<string, Line>;
  /** The URL of the shop. */
  shop: string | null;
  status: Status;
}

/** One kind of item in the cart. */
export interface Line {
  /** The price of one when it was added last. */
  cents: number;
  /** How many. */
  quantity: number;
}

/** How far the cart is. */
export type Status = "open" | "ordering" | StatusOrdered;

export interface StatusOrderedOrdered {
  /** The shop's number of the order. */
  order: string;
}

/** The shop has confirmed the order. */
export interface StatusOrdered {
  ordered: StatusOrderedOrdered;
}

/** An entity of the type cart. */
export class CartEntity {
  /** The entity, for calls by name and for channels. */
  readonly entity: Entity;

  constructor(client: Client, id: string) {
    this.entity = client.entity("cart", id);
  }

  /** Opens the cart for a shop, whose URL the manifest must grant. */
  async open(shop: string, options?: CallOptions): Promise<void> {
    return (await this.entity.command<void>("open", { shop }, options)).value;
  }

  /** Adds items at the shop's current price. Returns the total in cents. */
  async add(item: string, quantity: number, options?: CallOptions): Promise<number> {
    return (await this.entity.command<number>("add", { item, quantity }, options)).value;
  }

  /** Removes all items of a kind. Returns the total in cents. */
  async remove(item: string, options?: CallOptions): Promise<number> {
    return (await this.entity.command<number>("remove", { item }, options)).value;
  }

  /** Orders what is in the cart. The order is sent right after this turn. */
  async checkout(options?: CallOptions): Promise<void> {
    return (await this.entity.command<void>("checkout", undefined, options)).value;
  }

  /** Returns what is in the cart, and how far it is. */
  async contents(options?: CallOptions): Promise<Cart> {
    return (await this.entity.query<Cart>("contents", undefined, options)).value;
  }
}

"""Typed calls of the entity type cart, revision 1. Written by `ostraca client`."""

from __future__ import annotations

from typing import Any, Literal, NotRequired, TypeAlias, TypedDict

from ostraca import CallOptions, Client, Entity


class Cart(TypedDict):
    """The state of one cart, built from its events."""

    # What is in the cart, by item.
    lines: dict[str, Line]
    # The URL of the shop.
    shop: str | None
    status: Status


class Line(TypedDict):
    """One kind of item in the cart."""

    # The price of one when it was added last.
    cents: int
    # How many.
    quantity: int


# How far the cart is.
Status: TypeAlias = "Literal[\"open\", \"ordering\"] | StatusOrdered"


class StatusOrderedOrdered(TypedDict):
    # The shop's number of the order.
    order: str


class StatusOrdered(TypedDict):
    """The shop has confirmed the order."""

    ordered: StatusOrderedOrdered


class CartEntity:
    """An entity of the type cart."""

    entity: Entity
    """The entity, for calls by name and for channels."""

    def __init__(self, client: Client, id: str) -> None:
        self.entity = client.entity("cart", id)

    async def open(self, shop: str, *, options: CallOptions | None = None) -> None:
        """Opens the cart for a shop, whose URL the manifest must grant."""
        await self.entity.command("open", {"shop": shop}, options)

    async def add(self, item: str, quantity: int, *, options: CallOptions | None = None) -> int:
        """Adds items at the shop's current price. Returns the total in cents."""
        reply = await self.entity.command("add", {"item": item, "quantity": quantity}, options)
        result: int = reply.value
        return result

    async def remove(self, item: str, *, options: CallOptions | None = None) -> int:
        """Removes all items of a kind. Returns the total in cents."""
        reply = await self.entity.command("remove", {"item": item}, options)
        result: int = reply.value
        return result

    async def checkout(self, *, options: CallOptions | None = None) -> None:
        """Orders what is in the cart. The order is sent right after this turn."""
        await self.entity.command("checkout", None, options)

    async def contents(self, *, options: CallOptions | None = None) -> Cart:
        """Returns what is in the cart, and how far it is."""
        reply = await self.entity.query("contents", None, options)
        result: Cart = reply.value
        return result

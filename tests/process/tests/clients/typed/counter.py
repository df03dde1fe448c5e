"""Typed calls of the entity type counter, revision 1. Written by `ostraca client`."""

from __future__ import annotations

from typing import Any, Literal, NotRequired, TypeAlias, TypedDict

from ostraca import CallOptions, Client, Entity


class CounterEntity:
    """An entity of the type counter."""

    entity: Entity
    """The entity, for calls by name and for channels."""

    def __init__(self, client: Client, id: str) -> None:
        self.entity = client.entity("counter", id)

    async def add(self, by: int, *, options: CallOptions | None = None) -> int:
        """Adds to the counter and returns the new value."""
        reply = await self.entity.command("add", {"by": by}, options)
        result: int = reply.value
        return result

    async def get(self, *, options: CallOptions | None = None) -> int:
        """Returns the current value."""
        reply = await self.entity.query("get", None, options)
        result: int = reply.value
        return result

    async def reset(self, *, options: CallOptions | None = None) -> int:
        """Resets the counter to zero and returns the previous value."""
        reply = await self.entity.command("reset", None, options)
        result: int = reply.value
        return result

    async def limit(self, at: int | None = None, *, options: CallOptions | None = None) -> None:
        """Sets the highest value that the counter may reach; `null` removes the limit."""
        await self.entity.command("limit", {**({} if at is None else {"at": at})}, options)

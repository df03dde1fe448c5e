"""Typed calls of the entity type account, revision 1. Written by `ostraca client`."""

from __future__ import annotations

from typing import Any, Literal, NotRequired, TypeAlias, TypedDict

from ostraca import CallOptions, Client, Entity


class AccountEntity:
    """An entity of the type account."""

    entity: Entity
    """The entity, for calls by name and for channels."""

    def __init__(self, client: Client, id: str) -> None:
        self.entity = client.entity("account", id)

    async def deposit(self, cents: int, *, options: CallOptions | None = None) -> int:
        """Deposits an amount in cents and returns the new balance."""
        reply = await self.entity.command("deposit", {"cents": cents}, options)
        result: int = reply.value
        return result

    async def withdraw(self, cents: int, *, options: CallOptions | None = None) -> int:
        """Withdraws an amount in cents and returns the new balance."""
        reply = await self.entity.command("withdraw", {"cents": cents}, options)
        result: int = reply.value
        return result

    async def balance(self, *, options: CallOptions | None = None) -> int:
        """Returns the balance in cents."""
        reply = await self.entity.query("balance", None, options)
        result: int = reply.value
        return result

    async def overdraft(self, cents: int, *, options: CallOptions | None = None) -> None:
        """Sets how many cents the balance may go below zero."""
        await self.entity.command("overdraft", {"cents": cents}, options)

    async def history(self, limit: int | None = None, cursor: str | None = None, *, options: CallOptions | None = None) -> Any:
        """Returns the last entries, one page at a time, oldest first."""
        reply = await self.entity.query("history", {**({} if limit is None else {"limit": limit}), **({} if cursor is None else {"cursor": cursor})}, options)
        result: Any = reply.value
        return result

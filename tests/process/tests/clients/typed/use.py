"""Uses typed calls as an application does."""

from __future__ import annotations

import asyncio
import os

from account import AccountEntity
from cart import CartEntity, Status
from counter import CounterEntity

from ostraca import CallError, CallOptions, Client


async def main() -> None:
    async with Client(os.environ["ADDRESSES"].split(","), token=os.environ["TOKEN"]) as client:
        counter = CounterEntity(client, "typed-python")
        total: int = await counter.add(5, options=CallOptions(key=True))
        await counter.limit(7)
        try:
            await counter.add(5)
            code = "added"
        except CallError as error:
            code = error.code
        account = AccountEntity(client, "typed-python")
        await account.deposit(500)
        await account.withdraw(200)
        balance: int = await account.balance()
        status: Status = (await CartEntity(client, "typed-python").contents())["status"]
        print(total, code, await counter.get(), balance, status)


asyncio.run(main())

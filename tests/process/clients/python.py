"""The Python client: a request in each line, and an answer with its number."""

from __future__ import annotations

import asyncio
import json
import sys
import traceback
from collections.abc import Callable
from contextlib import aclosing
from typing import Any

from ostraca import CallError, CallOptions, Client, Entity, Item, OstracaError

clients: dict[str, Client] = {}


def seen(value: object) -> object:
    """What a conversation sees of a value: bytes as their numbers."""
    return {"bytes": list(value)} if isinstance(value, bytes) else value


def renewed(tokens: list[str]) -> Callable[[], str]:
    left = list(tokens)
    return lambda: left.pop(0) if len(left) > 1 else left[0]


async def follow(entity: Entity, request: dict[str, Any]) -> dict[str, Any]:
    options = request["options"]
    start = options.get("from", "now")
    start = start["version"] if isinstance(start, dict) else start
    events: list[dict[str, Any]] = []
    async with aclosing(entity.channel(request["name"], from_=start, after=options.get("after"))) as channel:
        async for event in channel:
            if isinstance(event, Item):
                item = {"item": seen(event.item), "version": event.version, "utcMs": event.utc_ms, "cursor": event.cursor}
                events.append({"type": "item", **item})
            else:
                events.append({"type": "lost", "count": event.count})
            if len(events) == request["count"]:
                break
    return {"events": events}


async def answered(request: dict[str, Any]) -> dict[str, Any]:
    op, name = request["op"], request["client"]
    if op == "connect":
        tokens = request["tokens"]
        token = tokens[0] if len(tokens) == 1 else renewed(tokens)
        clients[name] = Client(request["addresses"], token=token)
        return {}
    entity = clients[name].entity(request["type"], request["id"])
    if op == "follow":
        return await follow(entity, request)
    given = request["options"]
    options = CallOptions(key=given.get("key"), timeout=given["timeout"] / 1000 if "timeout" in given else None)
    call = entity.command if op == "command" else entity.query
    reply = await call(request["method"], request["args"], options)
    return {"value": seen(reply.value), "version": reply.version}


async def perform(number: int, request: dict[str, Any]) -> None:
    try:
        answer = await answered(request)
    except OstracaError as error:
        outcome, key = (error.outcome, error.key) if isinstance(error, CallError) else ("", None)
        answer = {"error": {"outcome": outcome, "code": error.code, "key": key}}
    except Exception:
        answer = {"error": {"outcome": "", "code": traceback.format_exc(), "key": None}}
    print(json.dumps({"number": number, "answer": answer}), flush=True)


async def main() -> None:
    reader = asyncio.StreamReader(limit=16 << 20)
    await asyncio.get_running_loop().connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    tasks = set[asyncio.Task[None]]()
    while line := await reader.readline():
        request = json.loads(line)
        task = asyncio.create_task(perform(request["number"], request["request"]))
        tasks.add(task)
        task.add_done_callback(tasks.discard)


asyncio.run(main())

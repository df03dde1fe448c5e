"""Channels: items that an entity emits, as server-sent events."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Generic, TypeVar
from urllib.parse import quote

import httpx

from ._errors import ChannelError, Problem
from ._gateways import Backoff, Gateways

SILENCE = 40.0
"""A response that says nothing for so long is given up, in seconds: a node says something every 15 s."""

T = TypeVar("T")


@dataclass(frozen=True)
class Item(Generic[T]):
    """An item of a channel."""

    item: T
    """The item; ``bytes`` if it is not JSON."""
    version: int
    """The version of the entity that emitted it."""
    utc_ms: int
    """When, in milliseconds since 1970-01-01 00:00 UTC."""
    cursor: str
    """Where the item is: ``after`` continues behind it, through any node."""


@dataclass(frozen=True)
class Lost:
    """Items that are no longer kept are missing here."""

    count: int | None
    """How many, if it is known."""


@dataclass(frozen=True)
class _Event:
    type: str
    id: str | None
    data: str


async def follow(gateways: Gateways, path: str, start: str, after: str | None) -> AsyncGenerator[Item[Any] | Lost, None]:
    """Follows a channel, through one gateway after the other, until it is refused."""
    backoff = Backoff()
    cursor = after
    has_new_token = False
    timeout = httpx.Timeout(SILENCE, pool=None)
    while True:
        headers = {"accept": "text/event-stream"}
        query = f"?from={quote(start, safe='')}"
        if cursor is not None:
            headers["last-event-id"] = cursor
            query = ""
        retry_after = 0.0
        try:
            request = await gateways.request("GET", path + query, headers, timeout=timeout)
            response = await gateways.http.send(request, stream=True)
            try:
                kind = response.headers.get("content-type", "")
                if response.status_code == 200 and kind.startswith("text/event-stream"):
                    async with aclosing(_events(response)) as events:
                        async for event in events:
                            if event.type == "problem":
                                problem = Problem.read(event.data) or Problem("invalid-answer", event.data)
                                retry_after = _retry_of(problem)
                                break
                            backoff.reset()
                            has_new_token = False
                            cursor = cursor if event.id is None else event.id
                            shown = _shown(event, cursor or "")
                            if shown is not None:
                                yield shown
                else:
                    problem = Problem.read(await response.aread()) or _unexpected(response.status_code)
                    if response.status_code == 401 and gateways.renews_tokens and not has_new_token:
                        has_new_token = True
                        continue
                    retry_after = _retry_of(problem)
            finally:
                await response.aclose()
        except httpx.TransportError:
            pass
        gateways.next()
        await asyncio.sleep(max(backoff.next(), retry_after))


def _retry_of(problem: Problem) -> float:
    """Seconds until a retry, if one may succeed."""
    if problem.retry_after is None:
        raise ChannelError(problem)
    return problem.retry_after


def _unexpected(status: int) -> Problem:
    text = f"the answer is not a node's: status {status}"
    return Problem("invalid-answer", text, retry_after=0 if status >= 500 else None)


def _shown(event: _Event, cursor: str) -> Item[Any] | Lost | None:
    if not event.data or event.type not in ("message", "lost"):
        return None
    read = json.loads(event.data)
    if event.type == "lost":
        return Lost(read["count"])
    item = base64.b64decode(read["base64"]) if "base64" in read else read["item"]
    return Item(item, read["version"], read["utc-ms"], cursor)


async def _events(response: httpx.Response) -> AsyncGenerator[_Event, None]:
    """The events of a stream, as the HTML standard describes them."""
    kind, identity, data = "message", None, list[str]()
    rest = b""
    async for part in response.aiter_bytes():
        *lines, rest = (rest + part).split(b"\n")
        for raw in lines:
            line = raw.decode()
            if not line:
                if identity is not None or data:
                    yield _Event(kind, identity, "\n".join(data))
                kind, identity, data = "message", None, []
                continue
            field, _, text = line.partition(":")
            text = text.removeprefix(" ")
            if field == "event":
                kind = text
            elif field == "id":
                identity = text
            elif field == "data":
                data.append(text)

"""Calls, and when they are sent again."""

from __future__ import annotations

import asyncio
import json
import math
import secrets
import time
from dataclasses import dataclass
from typing import Any, Generic, Literal, TypeAlias, TypeVar, cast, get_args

import httpx

from ._errors import CallError, Outcome, Problem
from ._gateways import Backoff, Gateways

GRACE = 1.0
"""How long a gateway's answer may take after the deadline that it was given, in seconds."""
STALL = 3.0
"""How long a gateway may be silent before a request that may be repeated is sent to another one too, in seconds."""
MOST_ATTEMPTS = 3
"""How many requests of one call may be in progress."""

Kind: TypeAlias = Literal["command", "query"]
T = TypeVar("T")


@dataclass(frozen=True)
class CallOptions:
    """How a call is made."""

    key: str | Literal[True] | None = None
    """Sends the command with an idempotency key, so that it can be sent again and still runs once: a text of your own,
    or ``True`` for a random one. Queries need none. An entity remembers a limited number of keys: see
    ``docs/http.md``."""
    timeout: float | None = None
    """How long to wait for the outcome, with all retries, in seconds; ``None`` for the client's."""


@dataclass(frozen=True)
class Reply(Generic[T]):
    """A method's result."""

    value: T
    """The result; ``None`` for a method without one, and ``bytes`` if it is not JSON."""
    version: int
    """The entity's version after the turn, or the one that a query read."""
    message_id: str
    """The message's id, for logs."""


@dataclass(frozen=True)
class Failure:
    """Why an attempt has no result, and whether another may."""

    outcome: Outcome
    problem: Problem
    again: bool
    elsewhere: bool = True
    is_token: bool = False
    cause: BaseException | None = None


async def call(
    gateways: Gateways, path: str, kind: Kind, args: object, options: CallOptions, timeout: float
) -> Reply[Any]:
    """Calls a method until there is an outcome that another attempt would not change, or until the deadline.

    A request that may be repeated and is not answered for a while is sent to another gateway too: whichever answers
    first counts.
    """
    if not timeout >= 0.001:
        raise ValueError("the timeout must be at least 1 ms")
    key = None if kind == "query" or options.key is None else options.key
    key = secrets.token_hex(16) if key is True else key
    body = None if args is None else json.dumps(args, allow_nan=False).encode()
    deadline = time.monotonic() + timeout
    backoff = Backoff()
    running: set[asyncio.Task[Reply[Any] | Failure]] = set()

    def start() -> None:
        remaining = max(1, math.ceil((deadline - time.monotonic()) * 1000))
        running.add(asyncio.create_task(_once(gateways, path, kind, key, body, remaining)))

    may_repeat = kind == "query" or key is not None
    doubt: Failure | None = None
    has_new_token = False
    start()
    try:
        while True:
            may_spread = may_repeat and gateways.count > 1 and len(running) < MOST_ATTEMPTS
            stall = STALL if may_spread else None
            done, _ = await asyncio.wait(running, timeout=stall, return_when=asyncio.FIRST_COMPLETED)
            if not done:
                gateways.next()
                start()
                continue
            task = next(iter(done))
            running.remove(task)
            attempt = task.result()
            if isinstance(attempt, Reply):
                return attempt
            if attempt.outcome == "unknown":
                doubt = attempt
            if attempt.elsewhere:
                gateways.next()
            if attempt.is_token and gateways.renews_tokens and not has_new_token:
                has_new_token = True
                start()
                continue
            is_final = attempt.outcome in ("application-error", "reply-dropped")
            pause = max(backoff.next(), attempt.problem.retry_after or 0)
            is_last = not attempt.again or time.monotonic() + pause >= deadline
            if not is_final and running:
                # Another attempt may still be answered.
                continue
            if is_final or is_last:
                # A refusal is about its own attempt: an earlier one may have run.
                last = attempt if is_final else doubt or attempt
                raise CallError(last.outcome, last.problem, key) from last.cause
            await asyncio.sleep(pause)
            start()
    finally:
        for task in running:
            task.cancel()


async def _once(
    gateways: Gateways, path: str, kind: Kind, key: str | None, body: bytes | None, remaining: int
) -> Reply[Any] | Failure:
    headers = {"ostraca-kind": kind, "ostraca-timeout": str(remaining)}
    if key is not None:
        headers["idempotency-key"] = key
    if body is not None:
        headers["content-type"] = "application/json"
    limit = remaining / 1000 + GRACE
    may_repeat = kind == "query" or key is not None
    try:
        async with asyncio.timeout(limit):
            request = await gateways.request("POST", path, headers, content=body, timeout=limit)
            response = await gateways.http.send(request)
    except (httpx.ConnectError, httpx.ConnectTimeout) as error:
        problem = Problem("not-connected", f"no answer from the gateway: {error}")
        return Failure("not-run", problem, again=True, cause=error)
    except (httpx.TransportError, TimeoutError) as error:
        text = str(error) or type(error).__name__
        problem = Problem("connection-lost", f"no answer from the gateway: {text}")
        return Failure(_in_doubt(kind), problem, again=may_repeat, cause=error)
    outcome = response.headers.get("ostraca-outcome", "")
    if outcome == "result" and response.is_success:
        version = int(response.headers["ostraca-entity-version"])
        return Reply(_value(response), version, response.headers.get("ostraca-message-id", ""))
    document = Problem.read(response.content)
    if document is None or outcome not in get_args(Outcome):
        text = f"the answer is not a node's: status {response.status_code}. Is there a proxy in between?"
        again = response.is_server_error and may_repeat
        return Failure(_in_doubt(kind), Problem("invalid-answer", text), again=again)
    again = (
        outcome == "unanswered"
        or (outcome == "unknown" and key is not None)
        or (outcome == "not-run" and document.retry_after is not None)
    )
    return Failure(
        cast(Outcome, outcome),
        document,
        again=again,
        elsewhere=response.is_server_error,
        is_token=response.status_code == 401,
    )


def _in_doubt(kind: Kind) -> Outcome:
    return "unanswered" if kind == "query" else "unknown"


def _value(response: httpx.Response) -> Any:
    if response.status_code == 204:
        return None
    is_json = response.headers.get("content-type") == "application/json"
    return json.loads(response.content) if is_json else response.content

"""Requests to one of the cluster's gateways: another one after each failure."""

from __future__ import annotations

import inspect
import random
from collections.abc import Awaitable, Callable, Sequence
from typing import TypeAlias
from urllib.parse import urlsplit

import httpx

FIRST_PAUSE = 0.01
"""Shortest pause before a retry, in seconds."""
LONGEST_PAUSE = 1.0
"""Longest pause before a retry, in seconds."""

Token: TypeAlias = str | Callable[[], str | Awaitable[str]]
"""A token, or what returns the current one."""


class Gateways:
    """The cluster's gateways, of which one is in use."""

    def __init__(self, addresses: Sequence[str], token: Token | None, verify: object) -> None:
        if not addresses:
            raise ValueError("name the address of at least one gateway, such as http://127.0.0.1:7480")
        self._addresses = [_origin(address) for address in addresses]
        self._current = random.randrange(len(self._addresses))
        self._token = token
        # A connection that is idle for longer may have been closed by the node, which closes it after 10 s.
        limits = httpx.Limits(max_connections=None, max_keepalive_connections=64, keepalive_expiry=5)
        self.http = httpx.AsyncClient(
            limits=limits, verify=verify, follow_redirects=False, trust_env=False  # type: ignore[arg-type]
        )

    @property
    def count(self) -> int:
        """How many there are."""
        return len(self._addresses)

    @property
    def renews_tokens(self) -> bool:
        """Whether a refused token may be replaced by a newer one."""
        return callable(self._token)

    async def request(self, method: str, path: str, headers: dict[str, str], **more: object) -> httpx.Request:
        """A request to the current gateway."""
        token = self._token
        if callable(token):
            made = token()
            token = await made if inspect.isawaitable(made) else made
        if token is not None:
            headers["authorization"] = f"Bearer {token}"
        address = self._addresses[self._current]
        return self.http.build_request(method, f"{address}{path}", headers=headers, **more)  # type: ignore[arg-type]

    def next(self) -> None:
        """Uses the next gateway from now on."""
        self._current = (self._current + 1) % len(self._addresses)


def _origin(address: str) -> str:
    parts = urlsplit(address)
    if parts.scheme not in ("http", "https") or not parts.netloc:
        raise ValueError(f"{address} is no address of a gateway: it must begin with http:// or https://")
    return f"{parts.scheme}://{parts.netloc}"


class Backoff:
    """Pauses that grow, each shortened by chance so that callers do not come back together."""

    def __init__(self) -> None:
        self._longest = FIRST_PAUSE

    def next(self) -> float:
        """The next pause, in seconds."""
        pause = self._longest * random.uniform(0.5, 1)
        self._longest = min(self._longest * 2, LONGEST_PAUSE)
        return pause

    def reset(self) -> None:
        """Begins with the shortest pause again."""
        self._longest = FIRST_PAUSE

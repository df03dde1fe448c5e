"""What an application uses: a client, and the entities that it calls."""

from __future__ import annotations

import ssl
from collections.abc import AsyncGenerator, Sequence
from types import TracebackType
from typing import Any, Literal, Self
from urllib.parse import quote

from ._call import CallOptions, Kind, Reply, call
from ._channel import Item, Lost, follow
from ._gateways import Gateways, Token


class Client:
    """Calls entities through the gateways of a cluster. Use it as an asynchronous context manager, or close it.

    - ``addresses``: of one or several nodes, such as ``http://127.0.0.1:7480``. A call that fails at one tries the next.
    - ``token``: names the caller; or a function, perhaps asynchronous, that returns the current one.
    - ``timeout``: how long a call waits for its outcome, with all retries, in seconds.
    - ``namespace``: of the entities' types.
    - ``verify``: certificates to trust, instead of the system's.
    """

    def __init__(
        self,
        addresses: str | Sequence[str],
        *,
        token: Token | None = None,
        timeout: float = 10.0,
        namespace: str = "default",
        verify: ssl.SSLContext | bool = True,
    ) -> None:
        all_addresses = [addresses] if isinstance(addresses, str) else list(addresses)
        self._gateways = Gateways(all_addresses, token, verify)
        self._timeout = timeout
        self._namespace = namespace

    def entity(self, entity_type: str, id: str) -> Entity:
        """The entity of this type with this id. It need not exist: its first message creates it."""
        return Entity(self._gateways, self._timeout, entity_type, id, self._namespace)

    async def close(self) -> None:
        """Closes the connections."""
        await self._gateways.http.aclose()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()


class Entity:
    """An entity, as seen by its callers. :meth:`Client.entity` makes one."""

    def __init__(
        self, gateways: Gateways, timeout: float, entity_type: str, id: str, namespace: str = "default"
    ) -> None:
        if not entity_type or not id:
            raise ValueError("an entity has a type and an id, neither of which is empty")
        self.entity_type = entity_type
        self.id = id
        self._gateways = gateways
        self._timeout = timeout
        self._path = f"/v1/{_encoded(namespace)}/{_encoded(entity_type)}/{_encoded(id)}"

    async def command(self, method: str, args: object = None, options: CallOptions | None = None) -> Reply[Any]:
        """Calls a method that may change state.

        ``args`` are the method's arguments: a dictionary with a member for each parameter, or the only argument itself.
        Raises :class:`CallError`, whose ``outcome`` says what is known about the call.
        """
        return await self._call("command", method, args, options)

    async def query(self, method: str, args: object = None, options: CallOptions | None = None) -> Reply[Any]:
        """Calls a method that changes nothing. It is sent again until it is answered. Raises :class:`CallError`."""
        return await self._call("query", method, args, options)

    def channel(
        self,
        name: str,
        *,
        from_: Literal["now", "oldest"] | int = "now",
        after: str | None = None,
    ) -> AsyncGenerator[Item[Any] | Lost, None]:
        """Follows a channel of the entity.

        ``from_`` says where to begin: with the next item, with the oldest that is kept, or behind a call's version;
        ``after`` is the cursor of an item, behind which to begin instead. The items come in the order in which they were
        emitted, and none comes twice; it continues through other nodes when its connection breaks. Raises
        :class:`ChannelError`.
        """
        start = f"version:{from_}" if isinstance(from_, int) else from_
        return follow(self._gateways, f"{self._path}/channel/{_encoded(name)}", start, after)

    async def _call(self, kind: Kind, method: str, args: object, options: CallOptions | None) -> Reply[Any]:
        options = options or CallOptions()
        timeout = self._timeout if options.timeout is None else options.timeout
        return await call(self._gateways, f"{self._path}/call/{_encoded(method)}", kind, args, options, timeout)


def _encoded(part: str) -> str:
    """A part of a path."""
    if part in (".", ".."):
        raise ValueError(f"{part!r} cannot be a part of a URL: choose another name")
    return quote(part, safe="")

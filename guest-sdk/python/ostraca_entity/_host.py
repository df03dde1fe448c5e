"""What an entity can ask of its host, in terms of Python. Times are milliseconds since 1970-01-01 00:00 UTC."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Literal

from componentize_py_types import Err
from wit_world.imports import asks as _asks
from wit_world.imports import channels as _channels
from wit_world.imports import clock as _clock
from wit_world.imports import context as _context
from wit_world.imports import deletion as _deletion
from wit_world.imports import journal as _journal
from wit_world.imports import lifecycle as _lifecycle
from wit_world.imports import log as _log
from wit_world.imports import messaging as _messaging
from wit_world.imports import passivation as _passivation
from wit_world.imports import random as _random
from wit_world.imports import remembering as _remembering
from wit_world.imports import secrets as _secrets
from wit_world.imports import settings as _settings
from wit_world.imports import state as _state
from wit_world.imports import subscriptions as _subscriptions
from wit_world.imports import timers as _timers

from ._json import decode, encode

_JSON = "application/json"
_KEY = "key/"
"""Keys of the entity's own begin with this, apart from the state's."""

Time = datetime | int | float


def _millis(time: Time) -> int:
    return max(0, round(time.timestamp() * 1000 if isinstance(time, datetime) else time))


class context:
    """Who this entity is, and the message that this turn handles."""

    @staticmethod
    def self_identity() -> Any:
        """``namespace``, ``entity_type``, ``id`` and ``revision``."""
        return _context.self_identity()

    @staticmethod
    def current_message() -> Any:
        """``principal``, ``session``, ``sequence``, ``kind``, ``version`` and others; ``None`` if there is none."""
        return _context.current_message()


def now() -> int:
    """The time of this turn."""
    return _clock.now()


def random_bytes(length: int) -> bytes:
    """Random bytes of this turn. The module ``random`` belongs to the turn, too."""
    return _random.get_bytes(length)


class keys:
    """Keys and values beside the state: what is too large to be stored with each turn."""

    @staticmethod
    def get(key: str) -> Any:
        """The value of a key; ``None`` if there is none."""
        return decode(_state.get(_KEY + key) or b"")

    @staticmethod
    def set(key: str, value: object) -> None:
        """Sets a key."""
        _state.set(_KEY + key, encode(value))

    @staticmethod
    def delete(key: str) -> bool:
        """Deletes a key, and says whether there was one."""
        return _state.delete(_KEY + key)

    @staticmethod
    def list(prefix: str = "", *, limit: int = 100, cursor: str | None = None) -> tuple[list[tuple[str, Any]], str | None]:
        """A page of the keys that begin with a prefix, in order, and the cursor of the next one."""
        page = _state.list(_KEY + prefix, limit, None if cursor is None else _KEY + cursor)
        entries = [(key[len(_KEY) :], decode(value)) for key, value in page.entries]
        return entries, None if page.next is None else page.next[len(_KEY) :]


def tell(entity_type: str, id: str, method: str, args: object = None) -> None:
    """Sends a command to an entity, when this turn is committed."""
    _messaging.tell(_messaging.Entity(entity_type, id), method, encode(args), _JSON)


def tell_at(name: str, time: Time, entity_type: str, id: str, method: str, args: object = None) -> None:
    """Sends a command at a time, under a name by which it can be cancelled."""
    _messaging.tell_at(name, _millis(time), _messaging.Entity(entity_type, id), method, encode(args), _JSON)


def cancel_tell(name: str) -> bool:
    """Cancels such a command, and says whether there was one."""
    return _messaging.cancel_tell(name)


class AskError(Exception):
    """Why an ask has no result."""

    outcome: Literal["application-error", "not-run", "unknown"]
    code: str

    def __init__(self, error: Any) -> None:
        value = error.value
        super().__init__(value if isinstance(value, str) else value.message)
        if isinstance(error, _asks.AskError_Application):
            self.outcome = "application-error"
        else:
            self.outcome = "not-run" if isinstance(error, _asks.AskError_NotRun) else "unknown"
        self.code = "unknown" if isinstance(value, str) else value.code


class PendingAsk:
    """A request to another entity that is on its way."""

    def __init__(self, handle: Any) -> None:
        self._handle = handle

    def wait(self) -> Any:
        """Waits for the result. Meanwhile, the node runs other entities."""
        try:
            return decode(self._handle.wait())
        except Err as error:
            raise AskError(error.value) from None


def start_ask(
    entity_type: str, id: str, method: str, args: object = None, *, timeout_ms: int | None = None
) -> PendingAsk:
    """Sends a request to an entity without waiting."""
    target = _messaging.Entity(entity_type, id)
    return PendingAsk(_asks.start_ask(target, method, encode(args), _JSON, timeout_ms))


def ask(entity_type: str, id: str, method: str, args: object = None, *, timeout_ms: int | None = None) -> Any:
    """Sends a request to an entity, and waits for its result."""
    return start_ask(entity_type, id, method, args, timeout_ms=timeout_ms).wait()


def wait_any(pending: Sequence[PendingAsk]) -> int:
    """Waits until one of these is answered, and returns its index."""
    return _asks.wait_any([it._handle for it in pending])


class timers:
    """Timers, whose firings ``on_timer`` handles. Times are in milliseconds."""

    @staticmethod
    def set(
        name: str, *, at: Time | None = None, after: float = 0, every: int | None = None, payload: object = None
    ) -> None:
        """Sets a timer: at a time, or after some milliseconds; and perhaps again and again."""
        time: Any = _timers.Time_After(_millis(after)) if at is None else _timers.Time_At(_millis(at))
        _timers.set(name, time, every, encode(payload))

    @staticmethod
    def cancel(name: str) -> bool:
        """Cancels a timer, and says whether there was one."""
        return _timers.cancel(name)

    @staticmethod
    def list() -> list[Any]:
        """All timers, with ``name``, ``due``, ``interval``, ``payload`` in JSON, ``attempts`` and others."""
        return _timers.list()


@dataclass(frozen=True)
class Event:
    """An event of the journal."""

    number: int
    event: Any


class journal:
    """Events that turns append, and later turns read."""

    @staticmethod
    def append(event: object) -> int:
        """Appends an event, and returns its number."""
        return _journal.append(encode(event))

    @staticmethod
    def read(from_: int = 1, limit: int = 100) -> tuple[list[Event], int | None]:
        """A page of events, and the number at which the next one begins."""
        page = _journal.read(from_, limit)
        return [Event(it.number, decode(it.data)) for it in page.events], page.next

    @staticmethod
    def truncate(before: int) -> int:
        """Removes the events with lower numbers, and returns the number of the first that is kept."""
        return _journal.truncate(before)

    @staticmethod
    def save_snapshot(value: object) -> None:
        """Saves a snapshot, which includes all events so far."""
        _journal.save_snapshot(encode(value))

    @staticmethod
    def load_snapshot() -> tuple[int, Any] | None:
        """The number of the last event that the snapshot includes, and its value."""
        found = _journal.load_snapshot()
        return None if found is None else (found.through, decode(found.data))


def emit(channel: str, item: object) -> None:
    """Emits an item on a channel, when this turn is committed."""
    _channels.emit(channel, encode(item))


def subscribe(entity_type: str, id: str, channel: str, method: str) -> None:
    """Subscribes to a channel of another entity: each item calls this entity's method."""
    _subscriptions.subscribe(_messaging.Entity(entity_type, id), channel, method)


def unsubscribe(entity_type: str, id: str, channel: str) -> None:
    """Ends such a subscription."""
    _subscriptions.unsubscribe(_messaging.Entity(entity_type, id), channel)


class lifecycle:
    """How long this entity and its instance live."""

    @staticmethod
    def passivate() -> None:
        """Drops this instance after the turn."""
        _lifecycle.passivate()

    @staticmethod
    def passivate_after(delay_ms: int | None) -> None:
        """Keeps this instance for so long without a message; with ``None``, as long as the type says."""
        _passivation.passivate_after(delay_ms)

    @staticmethod
    def remember() -> None:
        """Starts this entity wherever its shard is, without waiting for a message."""
        _remembering.remember()

    @staticmethod
    def forget() -> None:
        """No longer does so."""
        _remembering.forget()

    @staticmethod
    def is_remembered() -> bool:
        """Whether it does so."""
        return _remembering.is_remembered()

    @staticmethod
    def delete() -> None:
        """Deletes this entity when the turn ends."""
        _deletion.delete()

    @staticmethod
    def expire_at(time: Time | None) -> None:
        """Sets when this entity is deleted; with ``None``, when the type says."""
        _deletion.expire_at(None if time is None else _millis(time))

    @staticmethod
    def expires_at() -> int | None:
        """When this entity is deleted, if a time is set."""
        return _deletion.expires_at()


def secret(name: str) -> str | None:
    """A secret of the type that the manifest names; ``None`` if it is not set."""
    return _secrets.get(name)


def setting(name: str) -> str | None:
    """A setting of the type that the manifest names; ``None`` if it is not set."""
    return _settings.get(name)


class log:
    """Lines in the node's log."""

    @staticmethod
    def debug(message: object) -> None:
        _log.log(_log.Level.DEBUG, str(message))

    @staticmethod
    def info(message: object) -> None:
        _log.log(_log.Level.INFO, str(message))

    @staticmethod
    def warn(message: object) -> None:
        _log.log(_log.Level.WARN, str(message))

    @staticmethod
    def error(message: object) -> None:
        _log.log(_log.Level.ERROR, str(message))

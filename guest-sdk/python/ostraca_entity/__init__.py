"""What an entity in Python is made of. ``docs/guests-python.md`` in Ostraca's repository explains it.

An entity is a class whose methods handle its messages, and whose attributes are its state::

    from ostraca_entity import Entity, command, query

    class Counter(Entity):
        def __init__(self) -> None:
            self.value = 0

        @command
        def add(self, by: int) -> int:
            \"\"\"Adds to the value, and returns the new one.\"\"\"
            self.value += by
            return self.value

        @query
        def get(self) -> int:
            \"\"\"Returns the value.\"\"\"
            return self.value
"""

from ._entity import Entity, Firing, Refusal, command, query
from ._host import (
    AskError,
    PendingAsk,
    ask,
    cancel_tell,
    context,
    emit,
    journal,
    keys,
    lifecycle,
    log,
    now,
    random_bytes,
    secret,
    setting,
    start_ask,
    subscribe,
    tell,
    tell_at,
    timers,
    unsubscribe,
    wait_any,
)

__all__ = [
    "AskError",
    "Entity",
    "Firing",
    "PendingAsk",
    "Refusal",
    "ask",
    "cancel_tell",
    "command",
    "context",
    "emit",
    "journal",
    "keys",
    "lifecycle",
    "log",
    "now",
    "query",
    "random_bytes",
    "secret",
    "setting",
    "start_ask",
    "subscribe",
    "tell",
    "tell_at",
    "timers",
    "unsubscribe",
    "wait_any",
]

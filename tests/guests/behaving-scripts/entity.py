"""The guest `behaving` in Python."""

from __future__ import annotations

import random

from ostraca_entity import (
    AskError,
    Entity,
    Firing,
    Refusal,
    ask,
    command,
    context,
    emit,
    journal,
    lifecycle,
    query,
    subscribe,
    tell,
    timers,
)


def me() -> str:
    return context.self_identity().entity_type


class Behaving(Entity):
    def __init__(self) -> None:
        self.value = 0
        self.fired_texts: list[str] = []
        self.noted_texts: list[str] = []

    @command
    def add(self, by: int) -> int:
        """Adds to the value, and returns it."""
        if by == 0:
            self.value = -1
            raise Refusal("nothing-to-add", "add something")
        self.value += by
        return self.value

    @query
    def get(self) -> int:
        return self.value

    @command
    def later(self, text: str, ms: int) -> None:
        timers.set("note", after=ms, payload=text)

    def on_timer(self, firing: Firing) -> None:
        self.fired_texts.append(firing.payload)

    @query
    def fired(self) -> list[str]:
        return self.fired_texts

    @command
    def tell(self, id: str, times: int) -> None:
        for _ in range(times):
            tell(me(), id, "add", 1)

    @command
    def ask(self, id: str, by: int) -> str:
        try:
            return str(ask(me(), id, "add", by))
        except AskError as error:
            return error.code

    @command
    def append(self, text: str) -> int:
        return journal.append(text)

    @query
    def events(self) -> list[str]:
        events, _ = journal.read()
        return [it.event for it in events]

    @command
    def post(self, text: str) -> None:
        emit("posts", text)

    @command
    def follow(self, id: str) -> None:
        subscribe(me(), id, "posts", "noted")

    @command
    def noted(self, text: str) -> None:
        self.noted_texts.append(text)

    @query
    def notes(self) -> list[str]:
        return self.noted_texts

    @command
    def end(self) -> None:
        lifecycle.delete()

    @query
    def draw(self) -> list[int]:
        return [random.getrandbits(32), random.getrandbits(32)]

    @command
    def fail(self) -> None:
        raise RuntimeError("it fails")

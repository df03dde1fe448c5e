"""Entities: classes whose methods handle messages, and whose attributes are the state."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ClassVar, Literal, ParamSpec, TypeVar

from . import _types

P = ParamSpec("P")
R = TypeVar("R")

Kind = Literal["command", "query"]
StartReason = Literal["first-message", "message", "remembered"]
StopReason = Literal["idle", "evicted", "passivated", "handed-off", "redeployed"]

_KIND = "_ostraca_kind"


class Refusal(Exception):
    """The entity refuses a message, or a timer's firing fails: with a code for programs, and a text for people."""

    def __init__(self, code: str, message: str = "") -> None:
        super().__init__(message or code)
        self.code = code
        self.message = message or code


@dataclass(frozen=True)
class Firing:
    """One firing of a timer."""

    name: str
    payload: Any
    due: int
    """When it was due, in milliseconds since 1970-01-01 00:00 UTC."""
    missed: int
    """How many more firings of a repeating timer have come due in the meantime."""
    attempt: int
    """The number of this attempt, from 1."""


def command(method: Callable[P, R]) -> Callable[P, R]:
    """Makes a method one that messages can call, and that may change the state."""
    setattr(method, _KIND, "command")
    return method


def query(method: Callable[P, R]) -> Callable[P, R]:
    """Makes a method one that messages can call, and that does not change the state."""
    setattr(method, _KIND, "query")
    return method


class Entity:
    """The base of an entity. Its attributes must be what JSON can express: they are stored after each turn that has
    changed them. ``__init__`` makes a new entity."""

    schema: ClassVar[int] = 0
    """The number of the layout of the attributes."""

    @classmethod
    def migrate(cls, old: dict[str, Any], from_schema: int) -> dict[str, Any]:
        """Makes the attributes of this layout from those of another one."""
        raise Refusal("no-migration", f"this entity cannot migrate from schema {from_schema}")

    def on_timer(self, firing: Firing) -> None:
        """Handles the firings of timers. If it raises, the firing is attempted again."""
        raise RuntimeError(f"the timer {firing.name} fires, but the entity has no on_timer")

    def on_start(self, reason: StartReason) -> None:
        """Called once for each instance, before its first message."""

    def on_stop(self, reason: StopReason) -> None:
        """Called before the host drops an instance, but not after a crash."""


class InvalidArguments(Exception):
    """The arguments do not fit the method."""


class Method:
    """A method that messages can call."""

    def __init__(self, name: str, kind: Kind, function: Callable[..., Any]) -> None:
        self.name = name
        self.kind = kind
        self.function = function
        lines = (inspect.getdoc(function) or "").splitlines()
        self.summary = lines[0] if lines else ""
        hints = typing.get_type_hints(function, include_extras=True)
        parameters = list(inspect.signature(function).parameters.values())[1:]
        self.members = {it.name: _types.of(hints.get(it.name, Any)) for it in parameters}
        optional = {
            it.name
            for it in parameters
            if it.default is not inspect.Parameter.empty or self.members[it.name].nullable
        }
        self.absent = {it.name: None for it in parameters if it.default is inspect.Parameter.empty and it.name in optional}
        self.named = _types.parameters(self.members, optional)
        self.result = _types.of(hints.get("return", Any))

    def arguments(self, value: Any) -> dict[str, Any]:
        """The named arguments of a message. The only one of a method may also be sent alone."""
        value = {} if value is None else value
        wrong = self.named.check(value, "")
        if wrong is not None and len(self.members) == 1:
            [(only, member)] = self.members.items()
            alone = member.check(value, "")
            if alone is None:
                return {only: value}
            wrong = wrong if isinstance(value, dict) and only in value else alone
        if wrong is not None:
            raise InvalidArguments(wrong)
        return {**self.absent, **value}

    def schemas(self) -> tuple[_types.Schema, _types.Schema]:
        """The JSON Schemas of the arguments and of the result."""
        definitions: dict[str, Any] = {}
        schema = self.named.schema(definitions)
        assert isinstance(schema, dict)
        if not self.members:
            schema = {**schema, "type": ["object", "null"]}
        elif len(self.members) == 1:
            [member] = self.members.values()
            schema = {"anyOf": [schema, member.schema(definitions)]}
        if definitions:
            schema = {**schema, "$defs": definitions}
        return schema, _types.complete(self.result)


def methods_of(entity: type[Entity]) -> dict[str, Method]:
    """The methods of an entity that messages can call, in the order of their definition."""
    found: dict[str, Method] = {}
    for parent in reversed(entity.__mro__):
        for name, function in vars(parent).items():
            kind = getattr(function, _KIND, None)
            if kind is not None:
                found[name] = Method(name, kind, function)
    return found

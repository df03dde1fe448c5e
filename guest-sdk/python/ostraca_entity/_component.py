"""The interfaces that an entity's component exports to the host."""

from __future__ import annotations

import json
import sys
import traceback
from collections.abc import Callable
from types import ModuleType
from typing import Any

from componentize_py_types import Err
from wit_world.exports import methods as host_methods
from wit_world.exports import schemas as host_schemas
from wit_world.imports import log as host_log
from wit_world.imports import random as host_random
from wit_world.imports import state as host_state
from wit_world.imports import types as host_types

from ._entity import Entity, Firing, InvalidArguments, Refusal, methods_of
from ._json import decode, encode

_STATE = "state"
"""The key under which the state is kept. Keys of the entity's own are other ones."""


class Instance:
    """The entity, while its instance lives."""

    def __init__(self, entity: type[Entity]) -> None:
        self.type = entity
        self.entity: Entity | None = None
        self.saved = b""

    def load(self) -> Entity:
        """The entity as it is stored."""
        if self.entity is None:
            entity = self.type()
            stored = host_state.get(_STATE)
            if stored is not None:
                vars(entity).update(decode(stored))
            self.entity, self.saved = entity, encode(vars(entity))
        return self.entity

    def turn[R](self, run: Callable[[Entity], R], *, saves: bool, refused: Callable[[Refusal], object] | None) -> R:
        """Runs a turn, and stores the state if it has changed. What is refused changes nothing."""
        # The generator was seeded when the component was built: all entities would draw the same numbers.
        if "random" in sys.modules:
            sys.modules["random"].seed(host_random.get_bytes(16))
        try:
            entity = self.load()
            result = run(entity)
            changed = encode(vars(entity))
            if changed != self.saved:
                if not saves:
                    raise TypeError("a query has changed the state: make the method a command")
                host_state.set(_STATE, changed)
                self.saved = changed
            return result
        except InvalidArguments as error:
            self.entity = None
            raise Err(host_types.MessageError_InvalidArguments(str(error))) from error
        except Refusal as error:
            self.entity = None
            if refused is None:
                raise report(error)
            raise Err(refused(error)) from error
        except BaseException as error:
            raise report(error)


def report(error: BaseException) -> BaseException:
    """Tells the host why the guest is about to trap."""
    frames = traceback.extract_tb(error.__traceback__)
    file, line = (frames[-1].filename, frames[-1].lineno or 0) if frames else ("", 0)
    host_log.report_panic(f"{type(error).__name__}: {error}", file, line)
    return error


def _name(reason: Any) -> Any:
    return reason.name.lower().replace("_", "-")


def component(module: ModuleType) -> tuple[type, ...]:
    """The classes of a component whose entity is the only one that a module defines."""
    found = [
        it
        for it in vars(module).values()
        if isinstance(it, type) and issubclass(it, Entity) and it.__module__ == module.__name__
    ]
    leaves = [it for it in found if not any(other is not it and issubclass(other, it) for other in found)]
    if len(leaves) != 1:
        names = ", ".join(it.__name__ for it in leaves) or "none"
        raise TypeError(f"{module.__name__} must define one class that is an Entity; it has {names}")
    [entity] = leaves
    methods = methods_of(entity)
    instance = Instance(entity)

    class Methods:
        def methods(self) -> list[host_methods.Method]:
            kinds = {"command": host_types.MessageKind.COMMAND, "query": host_types.MessageKind.QUERY}
            return [host_methods.Method(it.name, kinds[it.kind], it.summary) for it in methods.values()]

    class Schemas:
        def schemas(self) -> list[host_schemas.MethodSchema]:
            texts = ((it.name, [json.dumps(schema) for schema in it.schemas()]) for it in methods.values())
            return [host_schemas.MethodSchema(name, arguments, result) for name, (arguments, result) in texts]

    class Handler:
        def start(self, reason: Any) -> None:
            if entity.on_start is not Entity.on_start:
                instance.turn(lambda it: it.on_start(_name(reason)), saves=True, refused=lambda it: it.message)

        def message(self, method: str, body: bytes) -> bytes:
            called = methods.get(method)
            if called is None:
                raise Err(host_types.MessageError_UnknownMethod())

            def run(it: Entity) -> bytes:
                try:
                    value = decode(body)
                except ValueError as error:
                    raise InvalidArguments(f"the body is not JSON: {error}") from error
                return encode(called.function(it, **called.arguments(value)))

            def refused(error: Refusal) -> object:
                return host_types.MessageError_Application(host_types.ApplicationError(error.code, error.message))

            return instance.turn(run, saves=called.kind == "command", refused=refused)

    class Stop:
        def stop(self, reason: Any) -> None:
            if entity.on_stop is not Entity.on_stop:
                instance.turn(lambda it: it.on_stop(_name(reason)), saves=True, refused=None)

    class TimerHandler:
        def timer(self, firing: Any) -> None:
            shown = Firing(firing.name, decode(firing.payload), firing.due, firing.missed, firing.attempt)
            instance.turn(
                lambda it: it.on_timer(shown),
                saves=True,
                refused=lambda error: host_types.ApplicationError(error.code, error.message),
            )

    class Migration:
        def schema_version(self) -> int:
            return entity.schema

        def newest_schema(self) -> int:
            return entity.schema

        def migrate(self, from_schema: int) -> None:
            stored = host_state.get(_STATE)
            if stored is None:
                return
            try:
                migrated = encode(entity.migrate(decode(stored), from_schema))
            except Refusal as error:
                raise Err(f"{error.code}: {error.message}") from error
            except BaseException as error:
                raise report(error)
            host_state.set(_STATE, migrated)

    return Methods, Schemas, Handler, Stop, TimerHandler, Migration

"""Types of arguments and results, from annotations: each checks a value, and describes itself as a JSON Schema."""

from __future__ import annotations

import json
import types
import typing
from collections.abc import Callable
from typing import Any, Literal, NotRequired, Required, Union

Schema = dict[str, Any] | bool
Check = Callable[[object, str], str | None]
"""Says what is wrong with a value at a path, if anything."""


class Type:
    """A type. ``schema`` puts its named parts into a dictionary of definitions."""

    def __init__(self, schema: Callable[[dict[str, Any]], Schema], check: Check, *, nullable: bool = False) -> None:
        self.schema = schema
        self.check = check
        self.nullable = nullable


def of(annotation: Any, known: dict[Any, Type] | None = None) -> Type:
    """The type of an annotation; any value, if it is none of those that JSON has."""
    known = {} if known is None else known
    simple = _SIMPLE.get(annotation)
    if simple is not None:
        return simple
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin in (NotRequired, Required):
        return of(arguments[0], known)
    if origin is Literal:
        return _literal(arguments)
    if origin is list and arguments:
        return _array(of(arguments[0], known))
    if origin is dict and len(arguments) == 2 and arguments[0] is str:
        return _map(of(arguments[1], known))
    if origin in (Union, types.UnionType):
        return _union([of(argument, known) for argument in arguments])
    if typing.is_typeddict(annotation):
        return _typed_dict(annotation, known)
    if annotation is list:
        return _array(ANY)
    if annotation is dict:
        return _map(ANY)
    return ANY


def parameters(members: dict[str, Type], optional: set[str]) -> Type:
    """An object with exactly these members."""

    def schema(definitions: dict[str, Any]) -> Schema:
        return {
            "type": "object",
            "properties": {name: member.schema(definitions) for name, member in members.items()},
            "required": [name for name in members if name not in optional],
            "additionalProperties": False,
        }

    def check(value: object, path: str) -> str | None:
        if not isinstance(value, dict):
            return _expected("object", value, path)
        for name, member in value.items():
            if name not in members:
                return f"{path}unknown member {json.dumps(name)}"
            if wrong := members[name].check(member, _within(path, name)):
                return wrong
        missing = next((name for name in members if name not in optional and name not in value), None)
        return None if missing is None else f"{path}missing member {json.dumps(missing)}"

    return Type(schema, check)


def complete(described: Type) -> Schema:
    """A schema in which everything that it refers to is."""
    definitions: dict[str, Any] = {}
    schema = described.schema(definitions)
    return {**schema, "$defs": definitions} if definitions and isinstance(schema, dict) else schema


def _expected(name: str, value: object, path: str) -> str:
    if isinstance(value, dict | list):
        found = "an object" if isinstance(value, dict) else "an array"
    else:
        found = json.dumps(value, ensure_ascii=False)
        found = found if len(found) <= 40 else f"{found[:40]}…"
    return f"{path}expected {name}, found {found}"


def _within(path: str, part: object) -> str:
    return f"{path[:-2]}.{part}: " if path else f"at {part}: "


def _plain(schema: Schema, name: str, test: Callable[[object], bool]) -> Type:
    return Type(lambda _: schema, lambda value, path: None if test(value) else _expected(name, value, path))


def _is_integer(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


ANY = _plain(True, "anything", lambda _: True)
NULL = Type(
    lambda _: {"type": "null"},
    lambda value, path: None if value is None else _expected("null", value, path),
    nullable=True,
)
_SIMPLE: dict[Any, Type] = {
    None: NULL,
    type(None): NULL,
    bool: _plain({"type": "boolean"}, "boolean", lambda it: isinstance(it, bool)),
    int: _plain({"type": "integer"}, "integer", _is_integer),
    float: _plain({"type": "number"}, "number", lambda it: _is_integer(it) or isinstance(it, float)),
    str: _plain({"type": "string"}, "string", lambda it: isinstance(it, str)),
    Any: ANY,
    object: ANY,
}


def _literal(values: tuple[Any, ...]) -> Type:
    names = " or ".join(json.dumps(value) for value in values)
    return _plain({"enum": list(values)}, names, lambda it: any(it == one and type(it) is type(one) for one in values))


def _array(item: Type) -> Type:
    def check(value: object, path: str) -> str | None:
        if not isinstance(value, list):
            return _expected("array", value, path)
        wrong = (item.check(element, _within(path, at)) for at, element in enumerate(value))
        return next(filter(None, wrong), None)

    return Type(lambda definitions: {"type": "array", "items": item.schema(definitions)}, check)


def _map(member: Type) -> Type:
    def check(value: object, path: str) -> str | None:
        if not isinstance(value, dict):
            return _expected("object", value, path)
        wrong = (member.check(it, _within(path, name)) for name, it in value.items())
        return next(filter(None, wrong), None)

    return Type(
        lambda definitions: {"type": "object", "additionalProperties": member.schema(definitions)}, check
    )


def _union(members: list[Type]) -> Type:
    def check(value: object, path: str) -> str | None:
        wrong = [member.check(value, path) for member in members]
        return None if None in wrong else wrong[0]

    return Type(
        lambda definitions: {"anyOf": [member.schema(definitions) for member in members]},
        check,
        nullable=any(member.nullable for member in members),
    )


def _typed_dict(described: Any, known: dict[Any, Type]) -> Type:
    if described in known:
        return known[described]
    members: dict[str, Type] = {}
    optional: set[str] = set()
    inner = parameters(members, optional)
    name = described.__name__

    def schema(definitions: dict[str, Any]) -> Schema:
        if name not in definitions:
            definitions[name] = True
            definitions[name] = inner.schema(definitions)
        return {"$ref": f"#/$defs/{name}"}

    result = known[described] = Type(schema, inner.check)
    hints = typing.get_type_hints(described, include_extras=True)
    # Annotations that are texts do not show this in `__optional_keys__`.
    required = {name for name, hint in hints.items() if typing.get_origin(hint) is Required}
    optional.update(name for name, hint in hints.items() if typing.get_origin(hint) is NotRequired)
    optional.update(set() if described.__total__ else set(hints) - required)
    members.update({member: of(annotation, known) for member, annotation in hints.items()})
    return result

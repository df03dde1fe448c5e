"""The later version of `behaving`, whose state has another layout."""

from __future__ import annotations

from typing import Any

from ostraca_entity import Entity, Refusal, command, query


class Behaving(Entity):
    schema = 1

    def __init__(self) -> None:
        self.sum = 0

    @classmethod
    def migrate(cls, old: dict[str, Any], from_schema: int) -> dict[str, Any]:
        if "value" not in old:
            raise Refusal("no-value", f"schema {from_schema}")
        return {"sum": old["value"] + 1_000}

    @command
    def add(self, by: int) -> int:
        self.sum += by
        return self.sum

    @query
    def get(self) -> int:
        return self.sum

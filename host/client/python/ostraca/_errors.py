"""Errors, by what their receiver may do next."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Literal, TypeAlias, TypeVar

T = TypeVar("T")

Outcome: TypeAlias = Literal["not-run", "unknown", "unanswered", "application-error", "reply-dropped"]
"""What is known about a call that has no result:

- ``not-run``: it had no effect and never will;
- ``unknown``: the command may have run, or may still run;
- ``unanswered``: a query, which has no effect, got no answer;
- ``application-error``: the entity refused it, with a code of its own; this is final;
- ``reply-dropped``: it ran, but its reply is no longer kept.
"""


@dataclass(frozen=True)
class Problem:
    """A problem document (RFC 9457) of a node, as far as it was one."""

    code: str
    detail: str
    help: str = ""
    retry_after: float | None = None
    message_id: str | None = None
    entity_version: int | None = None
    details: dict[str, str] = field(default_factory=dict)

    @staticmethod
    def read(text: str | bytes) -> Problem | None:
        """Reads a problem document; ``None`` if it is none."""
        try:
            document = json.loads(text)
        except ValueError:
            return None
        if not isinstance(document, dict) or not isinstance(document.get("code"), str):
            return None

        def of(name: str, kind: type[T]) -> T | None:
            value = document.get(name)
            return value if isinstance(value, kind) else None

        retry_after = of("retry-after-ms", int)
        return Problem(
            code=document["code"],
            detail=of("detail", str) or "",
            help=of("help", str) or "",
            retry_after=None if retry_after is None else retry_after / 1000,
            message_id=of("message-id", str),
            entity_version=of("entity-version", int),
            details=of("details", dict) or {},
        )


class OstracaError(Exception):
    """An error that Ostraca describes: each has a stable code, explained in ``docs/errors.md``."""

    code: str
    """A stable code, or the entity's own."""
    help: str
    """How to fix it; may be empty."""
    details: dict[str, str]
    """More about the error, by name."""
    retry_after: float | None
    """Seconds after which a retry may succeed; ``None`` if none will."""

    def __init__(self, message: str, problem: Problem) -> None:
        super().__init__(message)
        self.code = problem.code
        self.help = problem.help
        self.details = problem.details
        self.retry_after = problem.retry_after


class CallError(OstracaError):
    """A call without a result."""

    outcome: Outcome
    """What is known about the call."""
    message_id: str | None
    """The message's id, for logs; ``None`` if no node answered."""
    entity_version: int | None
    """The entity's version after a refused or dropped command."""
    key: str | None
    """The idempotency key under which a command may be sent again."""

    def __init__(self, outcome: Outcome, problem: Problem, key: str | None) -> None:
        super().__init__(f"{outcome}: {problem.code}: {problem.detail}", problem)
        self.outcome = outcome
        self.message_id = problem.message_id
        self.entity_version = problem.entity_version
        self.key = key


class ChannelError(OstracaError):
    """A channel that cannot be followed any further."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(f"{problem.code}: {problem.detail}", problem)

"""Values as JSON in bytes."""

from __future__ import annotations

import json
from typing import Any


def encode(value: object) -> bytes:
    """A value as JSON: nothing for ``None``."""
    if value is None:
        return b""
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":")).encode()


def decode(data: bytes) -> Any:
    """The value of JSON: ``None`` for nothing."""
    return json.loads(data) if data else None

"""Calls entities of an Ostraca cluster over HTTP. ``docs/clients.md`` in Ostraca's repository explains it."""

from ._call import CallOptions, Reply
from ._channel import Item, Lost
from ._client import Client, Entity
from ._errors import CallError, ChannelError, OstracaError, Outcome

__all__ = [
    "CallError",
    "CallOptions",
    "ChannelError",
    "Client",
    "Entity",
    "Item",
    "Lost",
    "OstracaError",
    "Outcome",
    "Reply",
]

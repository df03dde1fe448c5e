"""The example `counter`, in Python."""

from ostraca_entity import Entity, Refusal, command, query


class Counter(Entity):
    def __init__(self) -> None:
        self.value = 0

    @command
    def add(self, by: int) -> int:
        """Adds to the value, and returns it."""
        if by < 0:
            raise Refusal("negative", "a counter only goes up")
        self.value += by
        return self.value

    @query
    def get(self) -> int:
        """Returns the value."""
        return self.value

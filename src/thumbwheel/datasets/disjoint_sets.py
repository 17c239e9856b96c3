"""Things that belong together because a chain of ties leads from one to the other (union-find)."""

from __future__ import annotations


class DisjointSets:
    """Numbers from 0, each at first alone. The name of a set is its smallest number, so the order
    of the ties decides nothing."""

    def __init__(self, size: int) -> None:
        self._parent = list(range(size))

    def find(self, number: int) -> int:
        """The name of the set that `number` is in."""
        root = number
        while self._parent[root] != root:
            root = self._parent[root]
        while self._parent[number] != root:
            number, self._parent[number] = self._parent[number], root
        return root

    def join(self, first: int, second: int) -> None:
        """Make the sets of both one."""
        first, second = self.find(first), self.find(second)
        self._parent[max(first, second)] = min(first, second)

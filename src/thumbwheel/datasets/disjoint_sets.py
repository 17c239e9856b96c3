"""Disjoint sets (union-find): which numbers are connected by a chain of ties."""

from __future__ import annotations


class DisjointSets:
    """Numbers from 0, each in a set of its own at first. A set is named by its smallest number, so
    the order of the ties does not matter."""

    def __init__(self, size: int) -> None:
        self._parent = list(range(size))

    def find(self, number: int) -> int:
        """Return the name of the set that `number` is in."""
        root = number
        while self._parent[root] != root:
            root = self._parent[root]
        while self._parent[number] != root:
            number, self._parent[number] = self._parent[number], root
        return root

    def join(self, first: int, second: int) -> None:
        """Merge the sets of both."""
        first, second = self.find(first), self.find(second)
        self._parent[max(first, second)] = min(first, second)

"""The compressed prefix tree under a TreeBatch, and its layout in rows.

Lives here: inserting sequences, and laying the nodes out depth first so that each leftmost chain is
one contiguous `Run` whose attention is plain causal. Does not live here: examples, tensors.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Run:
    """Rows [start, stop) that attend causally to themselves and wholly to the `prefix` intervals,
    in path order."""

    start: int
    stop: int
    prefix: tuple[tuple[int, int], ...]

    @property
    def prefix_rows(self) -> int:
        """Rows before the run on its path."""
        return sum(stop - start for start, stop in self.prefix)


class Node:
    """A stretch of tokens without a fork. `start` is its first row once the tree is laid out."""

    __slots__ = ("children", "ids", "parent", "start")

    def __init__(self, ids: Sequence[int], parent: Node | None) -> None:
        self.ids, self.parent = list(ids), parent
        self.children: list[Node] = []
        self.start = -1

    def ancestors(self) -> list[Node]:
        """From the root's child down to this node's parent."""
        found: list[Node] = []
        node = self.parent
        while node is not None and node.parent is not None:
            found.append(node)
            node = node.parent
        return found[::-1]

    def rows(self) -> list[int]:
        """Row of each token on the path from the root to the end of this node."""
        return [
            row
            for node in (*self.ancestors(), self)
            for row in range(node.start, node.start + len(node.ids))
        ]


class Trie:
    """Sequences with their common openings stored once. A node that was handed out stays the end of
    its sequence."""

    def __init__(self) -> None:
        self.root = Node((), None)

    def insert(self, at: Node, ids: Sequence[int], share: int) -> Node:
        """The node where `ids`, continued from the end of `at`, ends.

        A node is cut for an opening of at least `share` tokens only (counted from `at`), or where
        all of `ids` is in it.
        """
        done = 0
        while done < len(ids):
            child, common = _nearest(at, ids, done)
            if child is None or not (
                common == len(child.ids) or done + common == len(ids) or done + common >= share
            ):
                return _append(at, ids[done:])
            at = child if common == len(child.ids) else _cut(child, common)
            done += common
        return at

    def lay_out(self) -> tuple[list[int], tuple[Run, ...]]:
        """Give every node its rows; returns the token of each row and the runs that partition the
        rows."""
        flat: list[int] = []
        runs: list[Run] = []
        for node, opens_run in self._walk():
            node.start = len(flat)
            flat += node.ids
            if opens_run:
                runs.append(Run(node.start, len(flat), _intervals(node.ancestors())))
            else:
                runs[-1] = Run(runs[-1].start, len(flat), runs[-1].prefix)
        return flat, tuple(runs)

    def positions(self) -> list[int]:
        """Position of each row on its path."""
        found: list[int] = []
        ends: dict[int, int] = {id(self.root): 0}
        for node, _ in self._walk():
            start = ends[id(node.parent)]
            ends[id(node)] = start + len(node.ids)
            found += range(start, ends[id(node)])
        return found

    def _walk(self) -> Iterator[tuple[Node, bool]]:
        """Depth first; the flag says that the node is no first child and so opens a run."""
        stack = [(child, True) for child in reversed(self.root.children)]
        while stack:
            node, opens_run = stack.pop()
            yield node, opens_run
            stack += [(child, at > 0) for at, child in reversed(list(enumerate(node.children)))]


def _nearest(at: Node, ids: Sequence[int], done: int) -> tuple[Node | None, int]:
    best: Node | None = None
    longest = 0
    for child in at.children:
        common = common_prefix_length(child.ids, ids, done)
        if common > longest:
            best, longest = child, common
    return best, longest


def common_prefix_length(left: Sequence[int], right: Sequence[int], offset: int = 0) -> int:
    """How many tokens `left` and `right` from `offset` on begin alike with."""
    most = min(len(left), len(right) - offset)
    for at in range(most):
        if left[at] != right[offset + at]:
            return at
    return most


def _append(at: Node, ids: Sequence[int]) -> Node:
    node = Node(ids, at)
    at.children.append(node)
    return node


def _cut(node: Node, length: int) -> Node:
    """Put a new node with the first `length` tokens above `node`, which keeps the rest and its
    identity as an end."""
    parent = node.parent
    assert parent is not None  # noqa: S101 - the root is empty and never cut
    upper = Node(node.ids[:length], parent)
    parent.children[parent.children.index(node)] = upper
    node.ids, node.parent = node.ids[length:], upper
    upper.children = [node]
    return upper


def _intervals(nodes: Sequence[Node]) -> tuple[tuple[int, int], ...]:
    merged: list[tuple[int, int]] = []
    for node in nodes:
        stop = node.start + len(node.ids)
        if merged and merged[-1][1] == node.start:
            merged[-1] = (merged[-1][0], stop)
        else:
            merged.append((node.start, stop))
    return tuple(merged)

"""The compressed prefix tree under a TreeBatch, and its layout in rows.

Sequences are inserted; the nodes are laid out depth first, so that each leftmost chain of nodes is
one contiguous `RowRun` whose attention is plain causal. Examples and tensors are tree.py's.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class RowRun:
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
        """Return the ancestors from the root's child down to this node's parent."""
        ancestors: list[Node] = []
        node = self.parent
        while node is not None and node.parent is not None:
            ancestors.append(node)
            node = node.parent
        return ancestors[::-1]

    def rows(self) -> list[int]:
        """Return the row of each token on the path from the root to the end of this node."""
        rows: list[int] = []
        for node in (*self.ancestors(), self):
            rows += range(node.start, node.start + len(node.ids))
        return rows


class Trie:
    """Sequences with their common prefixes stored once. A node that was handed out stays the end of
    its sequence."""

    def __init__(self) -> None:
        self.root = Node((), None)

    def insert(self, parent: Node, ids: Sequence[int], share_at_least: int) -> Node:
        """Insert `ids`, continued from the end of `parent`, and return the node where they end.

        A node is split only for a common prefix of at least `share_at_least` tokens (counted from
        `parent`), or where all of `ids` is in it.
        """
        node, matched = parent, 0
        while matched < len(ids):
            child, common = _closest_child(node, ids, matched)
            whole_child = child is not None and common == len(child.ids)
            all_ids = matched + common == len(ids)
            long_enough = matched + common >= share_at_least
            if child is None or not (whole_child or all_ids or long_enough):
                return _append(node, ids[matched:])
            node = child if whole_child else _split(child, common)
            matched += common
        return node

    def lay_out(self) -> tuple[list[int], tuple[RowRun, ...]]:
        """Assign rows to every node; return the token of each row and the runs that partition the
        rows."""
        ids: list[int] = []
        runs: list[RowRun] = []
        for node, opens_run in self._walk():
            node.start = len(ids)
            ids += node.ids
            if opens_run:
                runs.append(RowRun(node.start, len(ids), _intervals(node.ancestors())))
            else:
                runs[-1] = RowRun(runs[-1].start, len(ids), runs[-1].prefix)
        return ids, tuple(runs)

    def positions(self) -> list[int]:
        """Return the position of each row on its path."""
        positions: list[int] = []
        ends: dict[int, int] = {id(self.root): 0}
        for node, _ in self._walk():
            start = ends[id(node.parent)]
            ends[id(node)] = start + len(node.ids)
            positions += range(start, ends[id(node)])
        return positions

    def _walk(self) -> Iterator[tuple[Node, bool]]:
        """Yield nodes depth first; the flag is true for a node that is no first child and so opens
        a run, and for the root's children."""
        stack = [(child, True) for child in reversed(self.root.children)]
        while stack:
            node, opens_run = stack.pop()
            yield node, opens_run
            numbered = list(enumerate(node.children))
            stack += [(child, number > 0) for number, child in reversed(numbered)]


def common_prefix_length(left: Sequence[int], right: Sequence[int], offset: int = 0) -> int:
    """Return how many tokens `left` has in common with `right` from `offset` on."""
    longest = min(len(left), len(right) - offset)
    for index in range(longest):
        if left[index] != right[offset + index]:
            return index
    return longest


def _closest_child(node: Node, ids: Sequence[int], offset: int) -> tuple[Node | None, int]:
    """Return the child that shares most tokens with `ids` from `offset` on, or None, and their
    number."""
    closest: Node | None = None
    longest = 0
    for child in node.children:
        common = common_prefix_length(child.ids, ids, offset)
        if common > longest:
            closest, longest = child, common
    return closest, longest


def _append(parent: Node, ids: Sequence[int]) -> Node:
    node = Node(ids, parent)
    parent.children.append(node)
    return node


def _split(node: Node, length: int) -> Node:
    """Insert a new node with the first `length` tokens above `node`, which keeps the rest and its
    identity as an end; return the new node."""
    parent = node.parent
    assert parent is not None  # noqa: S101 - the root is empty and never split
    upper = Node(node.ids[:length], parent)
    parent.children[parent.children.index(node)] = upper
    node.ids, node.parent = node.ids[length:], upper
    upper.children = [node]
    return upper


def _intervals(nodes: Sequence[Node]) -> tuple[tuple[int, int], ...]:
    """Return the rows of `nodes` as [start, stop) intervals; neighbours are merged."""
    merged: list[tuple[int, int]] = []
    for node in nodes:
        stop = node.start + len(node.ids)
        if merged and merged[-1][1] == node.start:
            merged[-1] = (merged[-1][0], stop)
        else:
            merged.append((node.start, stop))
    return tuple(merged)

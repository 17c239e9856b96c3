"""Finds tests whose verdict would be the program's own: those in which another of its functions
speaks about the answer.

A test asks one function of the program, the entry point. All others that only the program defines
may make what that one is called with, and nothing else: `assert longest([Pair(1, 2)]) == 1` is a
test. `assert is_close(f(2), 4) == True` is none, however it is written (`bool(...)`, `all([...])`,
by a variable, as the wanted value, as the loop that asserts). So what those functions give is
followed through the test: it may be assigned, changed, and stand in the arguments of the entry
point. Anywhere else it would decide.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator

from .questions import EVALUATORS, base_name, bound, names

IsCandidateCall = Callable[[ast.AST], bool]
"""Whether a node is a call of something that only the program defines."""


class Undecided(Exception):
    """The test asks several functions of the program, and nothing says which of them is the entry
    point."""


def asked_function(
    tree: ast.AST, is_candidate_call: IsCandidateCall, entry: str | None
) -> str | None:
    """Return the function of the program that a test is about, or None. Raises Undecided if there
    are several."""
    if entry is not None:
        return entry
    called = {
        base_name(node)
        for node in ast.walk(tree)
        if isinstance(node, ast.Call) and is_candidate_call(node)
    }
    if len(called) > 1:
        raise Undecided(" and ".join(sorted(called)))
    return next(iter(called), None)


class Flow:
    """Where values go in a test that other functions of the program than `entry` made.

    `inputs` are the names that hold such a value, or that may have been changed into one.
    """

    def __init__(self, tree: ast.Module, is_candidate_call: IsCandidateCall, entry: str) -> None:
        self._tree, self._theirs, self._entry = tree, is_candidate_call, entry
        self._bound = bound(tree)
        self.inputs = set[str]()
        while self._spread():
            pass

    def verdict_by(self) -> str | None:
        """Return the name by which another function of the program influences the verdict; None if
        there is none."""
        return self._in_body(self._tree.body)

    def _spread(self) -> bool:
        """Follow the values by one step; return whether anything was new."""
        before = len(self.inputs)
        for node in ast.walk(self._tree):
            if isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign | ast.NamedExpr):
                if node.value is not None and self._foreign(node.value):
                    for target in node.targets if isinstance(node, ast.Assign) else [node.target]:
                        self.inputs |= names(target)
            elif isinstance(node, ast.Expr) and self._foreign(node.value):
                self.inputs |= names(node.value) & self._bound
            elif isinstance(node, ast.comprehension) and self._foreign(node.iter):
                self.inputs |= names(node.target)
        return len(self.inputs) > before

    def _foreign(self, tree: ast.AST) -> str | None:
        """Return the first name in `tree` whose value another function made, outside of the
        arguments of the entry point, or None."""
        return next(self._foreign_names(tree), None)

    def _foreign_names(self, tree: ast.AST) -> Iterator[str]:
        if isinstance(tree, ast.Call) and self._theirs(tree):
            if base_name(tree) == self._entry:
                return
            yield base_name(tree)
        if (
            isinstance(tree, ast.Call)
            and base_name(tree) in EVALUATORS
            and self._evaluates_a_text(tree)
        ):
            yield base_name(tree)
        if isinstance(tree, ast.Name) and tree.id in self.inputs:
            yield tree.id
        for child in ast.iter_child_nodes(tree):
            yield from self._foreign_names(child)

    def _evaluates_a_text(self, call: ast.Call) -> bool:
        """Return whether a text of the test would be evaluated among the names of the program,
        together with its answers."""
        asks = any(self._theirs(node) for node in ast.walk(call))
        return asks and any(self._is_text(argument) for argument in call.args)

    def _is_text(self, tree: ast.AST) -> bool:
        if isinstance(tree, ast.Call) and self._theirs(tree) and base_name(tree) == self._entry:
            return False
        if isinstance(tree, ast.Constant) and isinstance(tree.value, str | bytes):
            return True
        return any(self._is_text(child) for child in ast.iter_child_nodes(tree))

    def _in_body(self, body: list[ast.stmt]) -> str | None:
        return next((name for statement in body if (name := self._in_statement(statement))), None)

    def _in_statement(self, statement: ast.stmt) -> str | None:
        """Return the name that decides in a statement, or None. Assigning or changing a value and
        calling for nothing decide nothing."""
        if isinstance(
            statement, ast.Assign | ast.AnnAssign | ast.AugAssign | ast.Expr | ast.Delete
        ):
            return None
        if isinstance(statement, ast.Assert):
            return self._foreign(statement.test)  # its message is left out
        if isinstance(statement, ast.If | ast.While):
            return self._foreign(statement.test) or self._in_body(
                [*statement.body, *statement.orelse]
            )
        if isinstance(statement, ast.For):
            return self._foreign(statement.iter) or self._in_body(
                [*statement.body, *statement.orelse]
            )
        if isinstance(statement, ast.Try):
            # to raise there would decide what happens next
            for caught in statement.body if statement.handlers else []:
                if (name := self._foreign(caught)) is not None:
                    return name
            handled = [inner for handler in statement.handlers for inner in handler.body]
            return self._in_body(
                [*statement.body, *handled, *statement.orelse, *statement.finalbody]
            )
        return self._foreign(statement)

"""Reads tests: what in them is a question for the candidate, and which names their statements bind, read and change."""

from __future__ import annotations

import ast
import sys

ASK = "__ask__"
"""The name by which a test asks; its argument is the text of an expression."""
EVALUATORS = frozenset({"eval", "exec"})


def asserted(asked: Asked, body: list[ast.stmt]) -> bool:
    """Put the questions into a test. Returns whether one of its own asserts depends on an answer."""
    found, answers = False, set[str]()
    for place, statement in enumerate(body):
        asked.seen = False
        if isinstance(statement, ast.Assert):
            read = names(statement.test)
            statement.test, statement.msg = asked.visit(statement.test), None  # a message asks nothing
            found |= not isinstance(statement.test, ast.Tuple) and (asked.seen or bool(read & answers))
        else:
            body[place] = asked.visit(statement)
            if asked.seen and isinstance(statement, ast.Assign | ast.AnnAssign | ast.AugAssign | ast.FunctionDef):
                answers |= made(statement)
    return found


def names(tree: ast.AST) -> set[str]:
    """All names in it."""
    return {one.id for one in ast.walk(tree) if isinstance(one, ast.Name)}


def modules(tree: ast.AST) -> set[str]:
    """Modules of the library that a test names without an import: what it takes an attribute of."""
    used = {one.value.id for one in ast.walk(tree) if isinstance(one, ast.Attribute) and isinstance(one.value, ast.Name)}
    return used & sys.stdlib_module_names


def bound(tree: ast.AST) -> set[str]:
    """Names that it binds, at any depth."""
    found = set[str]()
    for one in ast.walk(tree):
        if isinstance(one, ast.Name) and not isinstance(one.ctx, ast.Load):
            found.add(one.id)
        elif isinstance(one, ast.alias):
            found.add((one.asname or one.name).partition(".")[0])
        elif isinstance(one, ast.FunctionDef | ast.ClassDef):
            found.add(one.name)
        elif isinstance(one, ast.arg):
            found.add(one.arg)
        elif isinstance(one, ast.ExceptHandler) and one.name:
            found.add(one.name)
    return found


def touched(statement: ast.stmt) -> set[str]:
    """Names that a statement of a setup gives a value or may change."""
    if isinstance(statement, ast.FunctionDef | ast.ClassDef):
        return {statement.name}
    if isinstance(statement, ast.Assign):
        return set().union(*(names(target) for target in statement.targets))
    if isinstance(statement, ast.AnnAssign | ast.AugAssign):
        return names(statement.target)
    return names(statement) | bound(statement)


def needs(statement: ast.stmt) -> set[str]:
    """Names that it takes to do a statement of a setup elsewhere."""
    simple = ast.Assign | ast.AnnAssign | ast.AugAssign | ast.FunctionDef | ast.ClassDef
    return loaded(statement) if isinstance(statement, simple) else names(statement)


def made(statement: ast.stmt) -> set[str]:
    """Names that a test holds an answer under after this statement."""
    return {statement.name} if isinstance(statement, ast.FunctionDef) else bound(statement)


def loaded(statement: ast.stmt) -> set[str]:
    """Names that a statement reads and does not itself make."""
    read = {one.id for one in ast.walk(statement) if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Load)}
    if isinstance(statement, ast.Assign | ast.AnnAssign | ast.AugAssign):
        return read - (bound(statement.value) if statement.value else set())
    return read - bound(statement)


class Asked(ast.NodeTransformer):
    """Puts a question in the place of every outermost call of the candidate. `bound`: names that the test binds itself."""

    def __init__(self, known: set[str], bound: set[str]) -> None:
        self.known, self.bound, self.proxies, self.needed, self.seen = known, bound, set[str](), set[str](), False

    def visit_Call(self, node: ast.Call) -> ast.AST:
        """A call: the candidate's, or one whose arguments may hold one."""
        evaluates = isinstance(node.func, ast.Name) and node.func.id in EVALUATORS and any(self._theirs(one) for one in ast.walk(node))
        if not evaluates and not self._theirs(node):
            return self.generic_visit(node)
        self.seen = True
        if not (names(node) - bound(node)) & self.bound:
            return self._question(node)
        if isinstance(node.func, ast.Attribute):
            node.func = self._question(node.func)
        elif isinstance(node.func, ast.Name) and not evaluates:
            self.proxies.add(node.func.id)
        return self.generic_visit(node)

    def _theirs(self, node: ast.AST) -> bool:
        """Whether it calls something by a name, dotted or not, that neither the judge nor the test knows."""
        base = node.func if isinstance(node, ast.Call) else None
        while isinstance(base, ast.Attribute):
            base = base.value
        return isinstance(base, ast.Name) and base.id not in self.known | self.bound

    def _question(self, node: ast.expr) -> ast.Call:
        self.needed |= names(node)
        return ast.Call(ast.Name(ASK, ast.Load()), [ast.Constant(ast.unparse(node))], [])

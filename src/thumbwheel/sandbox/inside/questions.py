"""Reads tests: what in them is a question for the candidate, and which names their statements bind,
read and change."""

from __future__ import annotations

import ast
import sys

ASK = "__ask__"
"""The name by which a test asks; its argument is the text of an expression."""
EVALUATORS = frozenset({"eval", "exec"})
GATHERING = frozenset({"list", "tuple"})
"""What takes all items of an answer as they are: asked with it, so that they come at once."""


def asserted(asked: Asked, body: list[ast.stmt]) -> bool:
    """Put the questions into a test. Returns whether one of its own asserts depends on an answer."""
    found, answers = False, set[str]()
    for place, statement in enumerate(body):
        asked.seen = False
        if isinstance(statement, ast.Assert):
            read = names(statement.test)
            statement.test, statement.msg = (
                asked.visit(statement.test),
                None,
            )  # a message asks nothing
            found |= not isinstance(statement.test, ast.Tuple) and (
                asked.seen or bool(read & answers)
            )
        else:
            body[place] = asked.visit(statement)
            if asked.seen and isinstance(
                statement, ast.Assign | ast.AnnAssign | ast.AugAssign | ast.FunctionDef
            ):
                answers |= binds(statement)
            elif asked.seen and isinstance(statement, ast.Expr):
                answers |= (
                    names(statement) & asked.bound
                )  # what it was called with, which it may have changed
    return found


def names(tree: ast.AST) -> set[str]:
    """All names in it."""
    return {one.id for one in ast.walk(tree) if isinstance(one, ast.Name)}


def modules(tree: ast.AST) -> set[str]:
    """Modules of the library that a test names without an import: what it takes an attribute of."""
    used = {
        one.value.id
        for one in ast.walk(tree)
        if isinstance(one, ast.Attribute) and isinstance(one.value, ast.Name)
    }
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


def binds(statement: ast.stmt) -> set[str]:
    """Names that a statement binds where it stands."""
    return (
        {statement.name}
        if isinstance(statement, ast.FunctionDef | ast.ClassDef)
        else bound(statement)
    )


def touched(statement: ast.stmt) -> set[str]:
    """Names that a statement of a setup gives a value or may change."""
    if isinstance(statement, ast.FunctionDef | ast.ClassDef):
        return binds(statement)
    if isinstance(statement, ast.Assign):
        return set().union(*(names(target) for target in statement.targets))
    if isinstance(statement, ast.AnnAssign | ast.AugAssign):
        return names(statement.target)
    return names(statement) | bound(statement)


def needs(statement: ast.stmt) -> set[str]:
    """Names that it takes to do a statement of a setup elsewhere."""
    simple = ast.Assign | ast.AnnAssign | ast.AugAssign | ast.FunctionDef | ast.ClassDef
    return loaded(statement) if isinstance(statement, simple) else names(statement)


def base_name(call: ast.Call) -> str:
    """The first name of what is called, `a` of `a.b.c(...)`; "" where it is no name."""
    base = call.func
    while isinstance(base, ast.Attribute):
        base = base.value
    return base.id if isinstance(base, ast.Name) else ""


def loaded(statement: ast.stmt) -> set[str]:
    """Names that a statement reads and does not itself make."""
    read = {
        one.id
        for one in ast.walk(statement)
        if isinstance(one, ast.Name) and isinstance(one.ctx, ast.Load)
    }
    if isinstance(statement, ast.Assign | ast.AnnAssign | ast.AugAssign):
        return read - (bound(statement.value) if statement.value else set())
    return read - bound(statement)


class Asked(ast.NodeTransformer):
    """Puts a question in the place of every outermost call of the candidate. `bound`: names that
    the test binds itself."""

    def __init__(self, known: set[str], bound: set[str]) -> None:
        self.known, self.bound = known, bound
        self.proxies, self.needed = set[str](), set[str]()
        self.seen = False

    def visit_Call(self, node: ast.Call) -> ast.AST:
        """A call: the candidate's, or one whose arguments may hold one."""
        outer = node.func.id if isinstance(node.func, ast.Name) else ""
        evaluates = outer in EVALUATORS and any(self.theirs(one) for one in ast.walk(node))
        gathers = outer in GATHERING and len(node.args) == 1 and self.theirs(node.args[0])
        if not (evaluates or gathers or self.theirs(node)):
            return self.generic_visit(node)
        self.seen = True
        if not (names(node) - bound(node)) & self.bound:
            return self._question(node)
        if isinstance(node.func, ast.Attribute):
            node.func = self._question(node.func)
        elif not evaluates and not gathers:
            self.proxies.add(outer)
        return self.generic_visit(node)

    def visit_Expr(self, node: ast.Expr) -> ast.AST:
        """A call whose result nobody takes is made for what it does to its arguments."""
        call = node.value
        alone = isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and self.theirs(call)
        self.generic_visit(node)
        if (
            alone
            and isinstance(node.value, ast.Call)
            and isinstance(node.value.func, ast.Name)
            and node.value.func.id in self.proxies
        ):
            node.value.func = ast.Attribute(node.value.func, "in_place", ast.Load())
        return node

    def theirs(self, node: ast.AST) -> bool:
        """Whether it calls something by a name, dotted or not, that neither the judge nor the test
        knows."""
        name = base_name(node) if isinstance(node, ast.Call) else ""
        return bool(name) and name not in self.known | self.bound

    def _question(self, node: ast.expr) -> ast.Call:
        self.needed |= names(node)
        return ast.Call(ast.Name(ASK, ast.Load()), [ast.Constant(ast.unparse(node))], [])


class InPlace(ast.NodeTransformer):
    """The same in the body of a `check`, for its argument."""

    def __init__(self) -> None:
        self._candidate = ""

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        """The function `check` itself."""
        if node.name == "check" and node.args.args:
            self._candidate = node.args.args[0].arg
        return self.generic_visit(node)

    def visit_Expr(self, node: ast.Expr) -> ast.AST:
        """A statement that is a call of the candidate."""
        call = node.value
        if (
            isinstance(call, ast.Call)
            and isinstance(call.func, ast.Name)
            and call.func.id == self._candidate
        ):
            call.func = ast.Attribute(call.func, "in_place", ast.Load())
        return node

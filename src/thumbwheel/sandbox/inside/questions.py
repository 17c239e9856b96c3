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


def asserted(transformer: QuestionTransformer, body: list[ast.stmt]) -> bool:
    """Put the questions into a test. Returns whether one of its asserts depends on an answer."""
    depends, answers = False, set[str]()
    for index, statement in enumerate(body):
        transformer.asked = False
        if isinstance(statement, ast.Assert):
            read = names(statement.test)
            statement.test = transformer.visit(statement.test)
            statement.msg = None  # a message asks nothing
            depends |= not isinstance(statement.test, ast.Tuple) and (
                transformer.asked or bool(read & answers)
            )
        else:
            body[index] = transformer.visit(statement)
            if transformer.asked and isinstance(
                statement, ast.Assign | ast.AnnAssign | ast.AugAssign | ast.FunctionDef
            ):
                answers |= binds(statement)
            elif transformer.asked and isinstance(statement, ast.Expr):
                # what it was called with, which it may have changed
                answers |= names(statement) & transformer.bound
    return depends


def names(tree: ast.AST) -> set[str]:
    """Return all names in the tree."""
    return {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}


def modules(tree: ast.AST) -> set[str]:
    """Return modules of the library that a test names without an import: the names whose attributes
    it reads."""
    used = {
        node.value.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name)
    }
    return used & sys.stdlib_module_names


def bound(tree: ast.AST) -> set[str]:
    """Return the names that the tree binds, at any depth."""
    names = set[str]()
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and not isinstance(node.ctx, ast.Load):
            names.add(node.id)
        elif isinstance(node, ast.alias):
            names.add((node.asname or node.name).partition(".")[0])
        elif isinstance(node, ast.FunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.arg):
            names.add(node.arg)
        elif isinstance(node, ast.ExceptHandler) and node.name:
            names.add(node.name)
    return names


def binds(statement: ast.stmt) -> set[str]:
    """Return the names that a statement binds in its own scope."""
    return (
        {statement.name}
        if isinstance(statement, ast.FunctionDef | ast.ClassDef)
        else bound(statement)
    )


def touched(statement: ast.stmt) -> set[str]:
    """Return the names that a statement of a setup gives a value or may change."""
    if isinstance(statement, ast.FunctionDef | ast.ClassDef):
        return binds(statement)
    if isinstance(statement, ast.Assign):
        return set().union(*(names(target) for target in statement.targets))
    if isinstance(statement, ast.AnnAssign | ast.AugAssign):
        return names(statement.target)
    return names(statement) | bound(statement)


def needs(statement: ast.stmt) -> set[str]:
    """Return the names that are needed to run a statement of a setup elsewhere."""
    simple = ast.Assign | ast.AnnAssign | ast.AugAssign | ast.FunctionDef | ast.ClassDef
    return loaded(statement) if isinstance(statement, simple) else names(statement)


def base_name(call: ast.Call) -> str:
    """Return the first name of the called expression, `a` of `a.b.c(...)`; "" if it is no name."""
    base = call.func
    while isinstance(base, ast.Attribute):
        base = base.value
    return base.id if isinstance(base, ast.Name) else ""


def loaded(statement: ast.stmt) -> set[str]:
    """Return the names that a statement reads and does not itself make."""
    read = {
        node.id
        for node in ast.walk(statement)
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load)
    }
    if isinstance(statement, ast.Assign | ast.AnnAssign | ast.AugAssign):
        return read - (bound(statement.value) if statement.value else set())
    return read - bound(statement)


class QuestionTransformer(ast.NodeTransformer):
    """Puts a question in the place of every outermost call of the candidate. `bound`: names that
    the test binds itself."""

    def __init__(self, judge_names: set[str], bound: set[str]) -> None:
        self.judge_names, self.bound = judge_names, bound
        self.proxies, self.needed = set[str](), set[str]()
        self.asked = False

    def visit_Call(self, node: ast.Call) -> ast.AST:
        """Transform a call of the candidate, or one whose arguments may hold one."""
        outer = node.func.id if isinstance(node.func, ast.Name) else ""
        evaluates = outer in EVALUATORS and any(
            self.is_candidate_call(node) for node in ast.walk(node)
        )
        gathers = (
            outer in GATHERING and len(node.args) == 1 and self.is_candidate_call(node.args[0])
        )
        if not (evaluates or gathers or self.is_candidate_call(node)):
            return self.generic_visit(node)
        self.asked = True
        if not (names(node) - bound(node)) & self.bound:
            return self._question(node)
        if isinstance(node.func, ast.Attribute):
            node.func = self._question(node.func)
        elif not evaluates and not gathers:
            self.proxies.add(outer)
        return self.generic_visit(node)

    def visit_Expr(self, node: ast.Expr) -> ast.AST:
        """Transform a call whose result is discarded: it is made for its effect on its
        arguments."""
        call = node.value
        alone = (
            isinstance(call, ast.Call)
            and isinstance(call.func, ast.Name)
            and self.is_candidate_call(call)
        )
        self.generic_visit(node)
        if (
            alone
            and isinstance(node.value, ast.Call)
            and isinstance(node.value.func, ast.Name)
            and node.value.func.id in self.proxies
        ):
            node.value.func = ast.Attribute(node.value.func, "in_place", ast.Load())
        return node

    def is_candidate_call(self, node: ast.AST) -> bool:
        """Return whether the node calls something by a name, dotted or not, that neither the judge
        nor the test knows."""
        name = base_name(node) if isinstance(node, ast.Call) else ""
        return bool(name) and name not in self.judge_names | self.bound

    def _question(self, node: ast.expr) -> ast.Call:
        self.needed |= names(node)
        return ast.Call(ast.Name(ASK, ast.Load()), [ast.Constant(ast.unparse(node))], [])


class InPlace(ast.NodeTransformer):
    """The same in the body of a `check`, for its argument."""

    def __init__(self) -> None:
        self._candidate = ""

    def visit_FunctionDef(self, node: ast.FunctionDef) -> ast.AST:
        """Note the candidate's name in the function `check`, its first argument."""
        if node.name == "check" and node.args.args:
            self._candidate = node.args.args[0].arg
        return self.generic_visit(node)

    def visit_Expr(self, node: ast.Expr) -> ast.AST:
        """Transform a statement that is a call of the candidate."""
        call = node.value
        if (
            isinstance(call, ast.Call)
            and isinstance(call.func, ast.Name)
            and call.func.id == self._candidate
        ):
            call.func = ast.Attribute(call.func, "in_place", ast.Load())
        return node

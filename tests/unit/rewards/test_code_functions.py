"""`code_execution`, `syntax` and the blocks that they read. Verdicts and cheats are in
tests/unit/sandbox."""

from __future__ import annotations

import logging
from pathlib import Path

import pytest

from tests.required import missing
from thumbwheel.core.errors import ConfigError
from thumbwheel.importers.sources.published_benchmarks.code_tasks import parse_mbpp
from thumbwheel.rewards.fences import Block, blocks
from thumbwheel.rewards.function import Case, JudgementStatus
from thumbwheel.rewards.functions.code_execution import CodeExecution
from thumbwheel.rewards.functions.syntax import GRAMMARS, Syntax
from thumbwheel.sandbox import canaries, run
from thumbwheel.sandbox.canaries import examine


@pytest.fixture(scope="module")
def sandbox():
    examination = examine()
    if not examination.allowed:
        reason = f"code may not run on this machine: {examination.reason}. {examination.fix}"
        missing("sandbox", reason)


@pytest.fixture
def nothing_cached(monkeypatch):
    canaries.forget()
    monkeypatch.setattr(run, "_pools", {})
    yield
    canaries.forget()


BLOCKS = {
    "```\nx\n```": [Block("", "x", True)],
    "a\n```Python title\nx\n  y\n```\nb": [Block("python", "x\n  y", True)],
    "~~~sh\n```\n~~~": [Block("sh", "```", True)],
    "````\n```\n````": [Block("", "```", True)],
    "```py\nx": [Block("py", "x", False)],
    "   ```py\n   x\n     y\n  ```": [Block("py", "x\n  y", True)],
    "    ```\n": [],
    "``` a`b\n": [],
    "```\n``` x\n```": [Block("", "``` x", True)],
    "no code, `inline`": [],
    "```a\n1\n```\n```b\n2\n```": [Block("a", "1", True), Block("b", "2", True)],
}


@pytest.mark.parametrize("text", BLOCKS)
def test_blocks(text):
    assert blocks(text) == BLOCKS[text]


def score(text, reference=None, settings=None):
    return CodeExecution.create(settings or {}).score([Case(text, reference)])[0]


ANSWERS = {
    "```python\nprint(1)\n```": 1.0,
    "```\nprint(1)\n```": 1.0,
    "```bash\necho on\n```": 1.0,
    "```python\n1/0\n```": 0.0,
    "```python\n1/0\n```\nor\n```sh\ntrue\n```": 0.5,
    "```python\nimport sys; sys.exit(0)\n```": 0.0,
    "```python\nx =\n```": 0.0,
    "```javascript\nf(\n```\n```python\n1\n```": 1.0,
}


@pytest.mark.parametrize("text", ANSWERS)
def test_without_tests_the_share_of_blocks_that_come_to_their_end(sandbox, text):
    assert score(text).value == ANSWERS[text]


@pytest.mark.parametrize("text", ["plain words", "", "```javascript\nf()\n```", "`inline`"])
def test_defect_0c7_without_code_it_does_not_apply_and_is_no_neutral_half(text):
    assert (score(text).status, score(text).value) == (JudgementStatus.NOT_APPLICABLE, None)


def test_tests_decide_and_partial_counts_them(sandbox):
    reference = {
        "tests": ["assert f(1) == 2", "assert f(2) == 5"],
        "setup": "",
        "entry_point": None,
        "check": None,
    }
    answer = "Try:\n```python\ndef f(x):\n    return x * 2\n```"
    assert score(answer, reference).value == 0.0
    assert score(answer, reference, {"partial": True}).value == 0.5
    assert score(answer, reference).evidence["tests"] == [True, False]
    assert score("def f(x): return x * x + 1", reference).value == 1.0


def test_a_task_about_a_function_with_the_name_of_a_builtin_is_judged(sandbox):
    task = {
        "task_id": 126,
        "text": "Write a function to add up the common divisors of two numbers.",
        "code": "def sum(a, b):\n    return 1 if a == b else sum_of(a, b)\ndef sum_of(a, b):\n"
        "    found = 0\n    for n in range(1, min(a, b) + 1):\n        found += n if a % n == 0 "
        "and b % n == 0 else 0\n    return found",
        "test_setup_code": "",
        "test_list": [
            "assert sum(10, 15) == 6",
            "assert sum(100, 150) == 93",
            "assert sum(4, 6) == 3",
        ],
        "challenge_test_list": [],
    }
    case, trace = parse_mbpp(task)
    assert score(trace.output, case.reference).value == 1.0
    wrong = "```python\ndef sum(a, b): return None\n```"
    assert score(wrong, case.reference).value == 0.0
    assert score("```python\ndef other(a, b): return 6\n```", case.reference).value == 0.0


def test_tests_as_json_in_a_text_are_tests_and_what_holds_none_lets_no_program_pass(sandbox):
    wrong = "```python\ndef f(x): return 0\n```"
    as_text = Case(wrong, '{"tests": ["assert f(1) == 2"]}')
    unread = [
        Case(wrong, reference)
        for reference in (
            ["assert f(1) == 2"],
            {"test_list": []},
            '{"inputs": ["1"]}',
            {"test_cases": []},
        )
    ]
    first, *others = CodeExecution.create({}).score([as_text, *unread])
    assert (first.value, first.status) == (0, JudgementStatus.OK)
    assert {reference.status for reference in others} == {
        JudgementStatus.NOT_APPLICABLE
    } and "holds no tests" in others[0].evidence["reason"]
    (number,) = CodeExecution.create({}).score([Case("```python\nprint(18)\n```", 18)])
    assert number.value == 1, "no tests were meant"
    (prose,) = CodeExecution.create({}).score([Case("just words", {"test_list": []})])
    assert prose.status is JudgementStatus.NOT_APPLICABLE


def test_an_example_of_use_beside_the_function_does_no_harm(sandbox):
    reference = {"tests": ["assert f(1) == 2"]}
    assert (
        score(
            "```python\ndef f(x):\n    return x * 2\n```\nUse it:\n```python\nprint(f(3))\n```",
            reference,
        ).value
        == 1.0
    )
    assert (
        score(
            "```python\ndef f(x):\n    return x * 2\n```\nUse it:\n```python\n>>> f(3)\n```",
            reference,
        ).value
        == 1.0
    )


def test_broken_tests_are_a_failure_not_a_zero(sandbox):
    assert score("def f(): pass", {"tests": ["assert ("]}).status is JudgementStatus.FAILED
    assert score("def f(): pass", {"tests": "assert f()"}).status is JudgementStatus.FAILED
    assert score("def f(): pass", {"check": "def check(c): pass"}).status is JudgementStatus.FAILED


def test_defect_0c11_no_sandbox_is_blocked_with_the_command_that_helps(nothing_cached, monkeypatch):
    monkeypatch.setenv("PATH", "/nonexistent")
    result = score("```python\n1\n```")
    assert (result.status, result.value) == (JudgementStatus.BLOCKED, None)
    assert (
        "bubblewrap" in result.evidence["reason"]
        and "apt-get install bubblewrap" in result.evidence["reason"]
    )


def test_defect_0c11_the_environment_and_the_files_of_the_user_are_not_there(
    sandbox, monkeypatch, tmp_path
):
    monkeypatch.setenv("OPENAI_API_KEY", "secret-key")
    (tmp_path / "private").write_text("secret-file")
    code = (
        "import os\nassert 'OPENAI_API_KEY' not in os.environ\nassert not "
        f"os.path.exists({str(tmp_path)!r})"
    )
    assert score(f"```python\n{code}\n```").value == 1.0


def test_defect_0c11_nothing_is_left_after_a_timeout(sandbox):
    before = set(Path("/tmp").iterdir())
    assert (
        score(
            "```python\nopen('/tmp/left', 'w')\nwhile True: pass\n```",
            settings={"limits": {"wall_seconds": 1}},
        ).value
        == 0.0
    )
    assert not [path for path in set(Path("/tmp").iterdir()) - before if path.name == "left"]


def test_trusted_code_needs_no_sandbox_and_is_logged_once(nothing_cached, monkeypatch, caplog):
    monkeypatch.setenv("PATH", "/nonexistent")
    function = CodeExecution.create({"trusted_code": True})
    with caplog.at_level(logging.WARNING, "thumbwheel"):
        texts = [
            "```python\nimport os; open('x', 'w')\n```",
            "```python\nimport os; assert not os.path.exists('x')\n```",
            "```python\n1/0\n```",
        ]
        values = [function.score([Case(text)])[0].value for text in texts]
    assert values == [1.0, 1.0, 0.0]
    assert len([record for record in caplog.records if "trusted_code" in record.message]) == 1
    run._close()


def test_trusted_code_is_never_the_default():
    assert CodeExecution.create({}).config.trusted_code is False
    with pytest.raises(ConfigError, match="trusted_code"):
        CodeExecution.create({"trusted": True})


GOOD = {
    "python": "x = 1",
    "py": "def f(): return 1",
    "json": '{"a": [1, 2.5, null]}',
    "bash": "if true; then echo; fi",
    "c": "int main() { return 0; }",
    "cpp": "int main() { auto x = 1; }",
    "css": "a { color: red }",
    "go": "package a\nfunc f() int { return 1 }",
    "html": "<p>a</p>",
    "java": "class A { int f() { return 1; } }",
    "js": "const x = () => 1;",
    "rust": "fn main() {}",
    "tsx": "const a = <p>1</p>;",
    "ts": "const a: number = 1;",
}
BAD = {
    "python": "x =",
    "py": "def f() return 1",
    "json": "{a: 1}",
    "bash": "if true; then echo",
    "c": "int main({",
    "cpp": "class {{",
    "css": "a { color",
    "go": "package a\nfunc f( {",
    "html": "<p <",
    "java": "class A { int f( }",
    "js": "const x = ( => 1",
    "rust": "fn main( {}",
    "tsx": "const a = <p>1",
    "ts": "const a: = 1;",
}


def syntax(text, settings=None):
    return Syntax.create(settings or {}).score([Case(text)])[0]


@pytest.mark.parametrize("language", GOOD)
def test_code_parses_in_its_language(language):
    if language not in ("python", "py", "json"):
        pytest.importorskip("tree_sitter")
    assert syntax(f"```{language}\n{GOOD[language]}\n```").value == 1.0
    wrong = syntax(f"```{language}\n{BAD[language]}\n```")
    assert wrong.value == 0.0 and wrong.evidence["wrong"][0]["problem"]


def test_every_grammar_has_its_example():
    assert all({*tags} & GOOD.keys() & BAD.keys() for _, _, tags in GRAMMARS.values())


def test_syntax_is_a_share_and_what_cannot_be_parsed_does_not_count():
    assert syntax("```python\nx\n```\n```json\n{\n```\n```cobol\nx\n```\n```\n(\n```").value == 0.5
    assert syntax("```json\n{\n```\n```python\nx\n```", {"languages": ["python"]}).value == 1.0
    assert syntax("x = 1", {"whole": "python"}).value == 1.0
    assert syntax("```json\n[NaN]\n```").value == 0.0
    for text in ("words", "```\nx\n```", "```cobol\nx\n```"):
        assert syntax(text).status is JudgementStatus.NOT_APPLICABLE


@pytest.mark.parametrize(
    "code",
    [
        "(" * 50_000,
        "-" * 50_000 + "1",
        "1+" * 40_000 + "1",
        "[" * 90_000,
        "x." * 40_000 + "x",
        "\0",
        "\ud800",
    ],
)
@pytest.mark.parametrize("language", ["python", "json", "js"])
def test_hostile_code_is_judged_and_ends(language, code):
    if language == "js":
        pytest.importorskip("tree_sitter")
    assert syntax(f"```{language}\n{code}\n```").status is JudgementStatus.OK

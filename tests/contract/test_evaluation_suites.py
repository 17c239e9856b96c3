"""Every listed suite keeps the contract of `evaluation/suite.py`."""

import pytest

from tests.third_party import names
from thumbwheel.core import ids
from thumbwheel.evaluation.suite import SuiteContext, SuiteMeasures
from thumbwheel.evaluation.suites import SUITES
from thumbwheel.evaluation.types import (
    Ask,
    AskLikelihood,
    EvaluationConfig,
    HeldOutCase,
    ModelAnswer,
    RecordedAnswer,
    SuiteResult,
)

PROMPT = [{"role": "user", "content": "Where is the fox?"}]


@pytest.fixture
def suite_context(tmp_path):
    (tmp_path / "tasks.yaml").write_text(
        "tasks: [{id: a, prompt: Hello., checks: [{type: contains, text: den}]}]"
    )
    cases = [
        HeldOutCase(
            f"c{n}", f"c{n}", "msg", [*PROMPT], {"at": "den"}, None, None, {"animal": "fox"}
        )
        for n in range(3)
    ]
    cases.append(
        HeldOutCase(
            "code",
            "code",
            "msg",
            [*PROMPT],
            {"tests": ["assert f() == 1"]},
            "code_execution",
            None,
            {},
        )
    )
    recorded = [
        RecordedAnswer("r", "g", PROMPT, None, text, text == "den", pair="r")
        for text in ("den", "yard")
    ]
    config = EvaluationConfig(
        benchmark=str(tmp_path / "tasks.yaml"), judge_url="http://127.0.0.1:9/v1", judge_model="m"
    )
    return SuiteContext(cases, recorded, config)


@pytest.mark.parametrize("name", names(SUITES))
def test_a_suite_asks_and_judges(name, suite_context):
    suite = SUITES.get(name)(suite_context)
    assert suite.name == name and suite.unfit() == ""
    asks = list(suite.asks())
    assert asks and all(isinstance(ask, Ask | AskLikelihood) for ask in asks)
    assert asks == list(SUITES.get(name)(suite_context).asks())  # the same questions each time
    ids.canonical(suite.content())
    answer = (ModelAnswer('{"at": "den"}', "stop", 5),)
    replies = [
        answer * ask.samples if isinstance(ask, Ask) else tuple((-1.0, 2) for _ in ask.texts)
        for ask in asks
    ]
    same = suite.outcome(replies, replies)
    assert isinstance(same, SuiteMeasures)
    if same.main is not None:
        wide, narrow = same.main(0.99), same.main(0.9)
        assert wide.gain == 0 and wide.low <= narrow.low <= 0 <= narrow.high <= wide.high
        SuiteResult(
            name=name, measures=(wide, *same.measures), slices=same.slices, details=same.details
        )


@pytest.mark.parametrize("name", names(SUITES))
def test_a_side_without_answers_is_no_crash(name, suite_context):
    suite = SUITES.get(name)(suite_context)
    silent = [() for _ in suite.asks()]
    assert suite.outcome(silent, silent).main is None


@pytest.mark.parametrize("name", [name for name in names(SUITES) if name != "regression"])
def test_what_a_suite_cannot_use_it_says(name):
    assert SUITES.get(name)(SuiteContext([], [], EvaluationConfig())).unfit()

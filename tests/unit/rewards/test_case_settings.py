"""A case is data: what lowers safety, or names an address, a variable or a path, comes from the
owner's settings alone."""

from __future__ import annotations

import json

import pytest

from tests.judges import prefers_longer
from thumbwheel.capture.ingest import ingest
from thumbwheel.core.config import Home, Sources
from thumbwheel.core.errors import ConfigError
from thumbwheel.core.seal import make_seal
from thumbwheel.db.workspace import Workspace
from thumbwheel.evaluation import measure
from thumbwheel.evaluation.types import HeldOutCase as HeldOut
from thumbwheel.llm.fake import FakeServer
from thumbwheel.models.types import Agent
from thumbwheel.rewards import ledger
from thumbwheel.rewards.checker import checker, refusal
from thumbwheel.rewards.component import components, resolve_paths
from thumbwheel.rewards.function import Case, JudgementStatus
from thumbwheel.rewards.functions.judge import Judge, signature
from thumbwheel.training.judge import JudgeRequest
from thumbwheel.training.judge import RewardJudge as FreshJudge

AGENT = "support"
TRUSTED = {"checker": "code_execution", "checker_config": {"trusted_code": True}}


def hostile_lines(marker):
    """A case that asks to be trusted, and a trace whose program, and whose task's setup, leave a
    mark on the host."""
    leaves_a_mark = f"open({str(marker)!r}, 'w').write('ran')"
    reference = {"tests": ["assert f(1) == 1"], "setup": leaves_a_mark, "entry_point": "f"}
    answer = f"```python\n{leaves_a_mark}\ndef f(x): return x\n```"
    return [
        {"type": "case", "id": "c1", "input": "Write f.", "reference": reference, **TRUSTED},
        {"type": "trace", "id": "t1", "case": "c1", "input": "Write f.", "output": answer},
    ]


def old_home(folder, lines, settings=None):
    """A home that was filled before anybody looked at what cases bring."""
    path = folder / "lines.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    ws = Workspace.open(
        Home.at(folder / "home"), Sources({"rewards": settings or {}}, "test.yaml", {})
    )
    assert ingest(ws, AGENT, "jsonl", path).refused == 0
    return ws


def scores(ws):
    """Score of the only trace by the component `checker`, and why it has no value."""
    config = ledger.settings(ws, AGENT)
    parts = components(ws, AGENT, config, ["checker"])
    report = ledger.run(ws, Agent.named(AGENT), parts)
    with ws.db.read() as connection:
        (combined,) = ledger.rewards(connection, Agent.named(AGENT), config, parts)
    return combined.scores["checker"], " ".join(reason for _, _, reason in report.reasons)


def test_an_import_refuses_a_case_that_asks_to_be_trusted(command_line, tmp_path):
    marker, path = tmp_path / "ran", tmp_path / "stranger.jsonl"
    path.write_text("".join(json.dumps(line) + "\n" for line in hostile_lines(marker)))
    for rehearsed in (["--dry-run"], []):
        options = ["--agent", AGENT, "--gold", "--reviewer", "ada", "--json", *rehearsed]
        code, out, _ = command_line("import", "jsonl", str(path), *options)
        report = json.loads(out)
        assert code != 0
        assert (report["refused"], report["records"]) == (1, {"trace": 1})
        assert (
            "'trusted_code' of 'code_execution', which only the owner's settings may"
            in report["refusals"][0]["reason"]
        )
    command_line("reward", "run", "--agent", AGENT)
    assert not marker.exists()


def test_a_case_of_an_old_home_is_blocked_where_the_ledger_judges(tmp_path):
    marker = tmp_path / "ran"
    with old_home(tmp_path, hostile_lines(marker)) as ws:
        score, reason = scores(ws)
    assert (score.value, score.status) == (None, JudgementStatus.BLOCKED)
    assert "'trusted_code'" in reason
    assert not marker.exists()


def test_a_case_of_an_old_home_is_blocked_where_an_evaluation_judges(tmp_path):
    marker = tmp_path / "ran"
    case, trace = hostile_lines(marker)
    held_out = HeldOut(
        "c1", "c1", "c1", [], case["reference"], case["checker"], case["checker_config"], {}
    )
    (score,) = measure.score([held_out], [trace["output"]], {})
    assert (score.value, score.status) == (None, JudgementStatus.NOT_APPLICABLE)
    assert "'trusted_code'" in score.evidence["reason"]
    assert not marker.exists()


def test_a_row_of_an_old_dataset_is_blocked_where_training_judges(tmp_path):
    marker = tmp_path / "ran"
    case, trace = hostile_lines(marker)
    row = {
        "row_id": "r1",
        "prompt": [],
        **{key: case[key] for key in ("reference", "checker", "checker_config")},
    }
    judge = FreshJudge({"checker": 1.0})
    try:
        (reward,) = judge.judge([JudgeRequest(row, trace["output"], "stop", [])])
    finally:
        judge.close()
    assert (reward.value, dict(reward.failures)) == (None, {"checker": "blocked"})
    assert not marker.exists()


JUDGED = [
    {"type": "trace", "id": "t1", "case": "c1", "input": "Where is it?", "output": "A long answer"},
]


def judged_case(**settings):
    case = {
        "type": "case",
        "id": "c1",
        "input": "Where is it?",
        "reference": "Short",
        "checker": "judge",
    }
    return {**case, "checker_config": settings} if settings else case


def stated(folder, ws, judge):
    """A statement of agreement that this home signed."""
    statement = {"judge": judge.fingerprint(), "pairs": 60, "prompts": 50, "low": 0.9}
    path = folder / "agreement.json"
    path.write_text(
        json.dumps({**statement, "signature": signature(statement, make_seal(ws.home.signing))})
    )
    return str(path)


@pytest.mark.slow
def test_a_case_sends_no_key_to_an_address_of_its_own(tmp_path, monkeypatch):
    monkeypatch.setenv("OWNERS_SECRET", "sk-secret")
    forged = tmp_path / "forged.json"
    with FakeServer(prefers_longer) as stranger:
        settings = {"url": stranger.url, "model": "m", "api_key_variable": "OWNERS_SECRET"}
        judge = Judge.create(settings)
        forged.write_text(
            json.dumps({"judge": judge.fingerprint(), "pairs": 500, "prompts": 100, "low": 0.9})
        )
        case = judged_case(**settings, agreement=str(forged))
        with old_home(tmp_path, [case, *JUDGED]) as ws:
            score, reason = scores(ws)
            (evaluated,) = measure.score(
                [HeldOut("c1", "c1", "c1", [], "Short", "judge", case["checker_config"], {})],
                ["A long answer"],
                resolve_paths(ws, AGENT, ledger.settings(ws, AGENT).checkers),
            )
        assert stranger.requests == []
    assert (score.status, evaluated.status) == (
        JudgementStatus.BLOCKED,
        JudgementStatus.NOT_APPLICABLE,
    )
    for name in ("url", "api_key_variable", "agreement"):
        assert repr(name) in reason


def test_the_owners_settings_make_a_judge_of_a_case_that_only_names_it(tmp_path):
    with FakeServer(prefers_longer) as server, old_home(tmp_path, [judged_case(), *JUDGED]) as ws:
        without, _ = scores(ws)
        assert without.status is JudgementStatus.BLOCKED
        settings = {"url": server.url, "model": "m"}
        agreement = stated(tmp_path, ws, Judge.create(settings))
        ws.sources = Sources(
            {"rewards": {"checkers": {"judge": {**settings, "agreement": agreement}}}},
            "test.yaml",
            {},
        )
        score, _ = scores(ws)
        assert (score.value, score.status) == (1, JudgementStatus.OK)
        owner = resolve_paths(ws, AGENT, ledger.settings(ws, AGENT).checkers)
        (evaluated,) = measure.score(
            [HeldOut("c1", "c1", "c1", [], "Short", "judge", None, {})], ["A long answer"], owner
        )
        assert evaluated.value == 1
        fresh = FreshJudge({"checker": 1.0}, checkers=owner)
        try:
            row = {"row_id": "r1", "reference": "Short", "checker": "judge", "checker_config": None}
            (trained,) = fresh.judge([JudgeRequest(row, "A long answer", "stop", [])])
        finally:
            fresh.close()
        assert trained.value == 1


def test_the_owner_may_trust_code_and_a_case_that_names_it_runs(tmp_path):
    marker = tmp_path / "ran"
    case, trace = hostile_lines(marker)
    del case["checker_config"]
    with old_home(
        tmp_path, [case, trace], {"checkers": {"code_execution": {"trusted_code": True}}}
    ) as ws:
        assert scores(ws)[0].value == 1
    assert marker.exists()


def test_an_agents_own_settings_stand_in_place_of_those_of_all():
    both = {"checkers": {"judge": {"url": "http://a/v1", "model": "a"}, "regex": {"timeout": 1}}}
    sources = Sources(
        {
            "rewards": {
                **both,
                "agents": {AGENT: {"checkers": {"judge": {"url": "http://b/v1", "model": "b"}}}},
            }
        },
        "t",
        {},
    )
    from thumbwheel.rewards.combine import RewardsConfig

    config = sources.load(RewardsConfig, "rewards")
    assert config.of(AGENT).checkers == {
        "judge": {"url": "http://b/v1", "model": "b"},
        "regex": {"timeout": 1},
    }
    assert config.of("other").checkers == both["checkers"]
    assert config.of(AGENT).fingerprint() != config.of("other").fingerprint()
    with pytest.raises(
        ConfigError, match=r"there is no reward function of that name\..*Did you mean 'judge'"
    ):
        Sources({"rewards": {"checkers": {"jugde": {}}}}, "t", {}).load(RewardsConfig, "rewards")


def test_the_component_checker_has_no_settings_of_its_own(tmp_path):
    component = {
        "components": {
            "checker": {"settings": {"functions": {"code_execution": {"trusted_code": True}}}}
        }
    }
    with (
        old_home(tmp_path, JUDGED, component) as ws,
        pytest.raises(ConfigError, match=r"under rewards\.checkers"),
    ):
        components(ws, AGENT, ledger.settings(ws, AGENT))


@pytest.mark.parametrize(
    ("function", "settings"),
    [
        ("code_execution", {"limits": {"wall_seconds": 3600}}),
        ("code_execution", {"partial": True, "trusted_code": False}),
        ("regex", {"pattern": "a", "timeout": 5}),
        ("learned", {"classifier": "/etc/passwd"}),
        ("reward_model", {"model": "/home"}),
        ("reward_model", {"device": "cuda"}),
        ("judge", {"url": "http://stranger/v1", "model": "m"}),
        ("judge", {"least_pairs": 20}),
        ("judge", {"home": "/tmp"}),
        ("judge", {"timeout": 1e9}),
        ("judge", {"parallel": 64}),
    ],
)
def test_what_no_case_may_set(function, settings):
    assert refusal(function, settings, None) is not None
    with pytest.raises(ConfigError, match="only the owner's settings may"):
        checker(function, settings, None, "case 'c1'", {function: settings})


def test_what_a_case_sets_stands_before_the_owners_and_the_rest_is_theirs():
    owner = {"regex": {"pattern": "b", "timeout": 2.0}}
    function = checker("regex", {"pattern": "a"}, None, "case 'c1'", owner)
    assert (function.config.pattern, function.config.timeout) == ("a", 2.0)
    assert function.score([Case("a")])[0].value == 1
    assert checker("regex", None, None, "case 'c2'", owner).config.pattern == "b"

"""The commands, as they are typed."""

from __future__ import annotations

import json

import pytest

from tests.command_line import Run
from tests.worlds.deploy_world import DeployWorld


@pytest.mark.slow
def test_from_a_plan_to_a_rollback(deployed: DeployWorld, command_line: Run):
    deployed.version(0)
    deployed.version(1)
    home = ("--home", str(deployed.ws.home.path))

    def run(*arguments: str, code: int = 0):
        outcome = command_line(*home, *arguments, "--agent", deployed.agent)
        assert outcome[0] == code, outcome
        return outcome

    planned = json.loads(run("deploy", "v1", "--dry-run", "--json")[1])
    assert (planned["kind"], planned["export"], planned["alias"]) == ("adapter", None, "live")
    done = json.loads(run("deploy", "v1", "--set", "threads=1", "--json")[1])
    assert done["canary"]["verdict"] == "passed" and done["switch"]["alias"] == "live"
    assert "used again" in run("deploy", "v1", "--dry-run")[1]
    assert "passed: 10 of 10" in " ".join(run("deploy", "v2", "--set", "threads=1")[1].split())
    listed = json.loads(run("deployments", "--json", "--history")[1])
    assert [(row["version"], row["aliases"], row["alive"]) for row in listed["deployments"]] == [
        ("v2", ["live"], True),
        ("v1", [], True),
    ]
    assert [row["reason"] for row in listed["switches"]] == ["deployed on embedded"] * 2
    assert "live is v1 again; it was v2" in run("rollback")[2]
    assert "rolled back" in run("deployments", "--history")[1]
    assert "live is now v2" in run("promote", "v2")[2]
    assert "live points at it" in run("undeploy", "v2", code=3)[2]
    assert "is gone from embedded" in run("undeploy", "v1")[2]


@pytest.mark.parametrize(
    ("arguments", "why"),
    [
        (("deploy", "v1", "--target", "olama"), "there is no target"),
        (("deploy", "v1", "--set", "threads"), "it has no value"),
        (("deploy", "v1", "--set", "thread=1"), "Did you mean 'threads'?"),
        (("deploy", "v1", "--quant", "Q4_K_M"), "accepts no quantised files"),
        (("deploy", "v1", "--accept", "me"), "needs a name and a reason"),
        (("rollback",), "no earlier version"),
        (("undeploy", "v1"), "there is none"),
    ],
)
def test_what_is_said_wrong_is_said_so(
    deployed: DeployWorld, command_line: Run, arguments: tuple[str, ...], why: str
):
    deployed.version(0)
    code, _, err = command_line(
        "--home", str(deployed.ws.home.path), *arguments, "--agent", deployed.agent
    )
    assert code in (2, 3) and why in " ".join(err.split())

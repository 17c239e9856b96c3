"""`thumbwheel --server URL`: the commands give what they give beside the home."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.command_line import Run
from tests.worlds.gateway_world import GatewayWorld, opened_home, running
from thumbwheel.access import users

LINES = (
    {"type": "trace", "id": "t1", "input": "Where is it?", "output": "On its way.", "session": "s"},
    {"type": "trace", "id": "t2", "input": "And now?", "output": "Here."},
    {"type": "feedback", "target": {"trace": "t1"}, "kind": "thumb", "value": True, "rater": "c"},
    {"type": "feedback", "target": {"trace": "t2"}, "kind": "rating", "value": 2, "rater": "d"},
)
FILE = "ratings.jsonl"
SAME = (
    "traces list --agent support --limit 1",
    "traces list --agent Support --rated",
    "traces show t1 --agent support",
    "traces show none --agent support",
    "feedback list --agent support",
    "feedback stats --agent support --period month",
    "feedback stats --agent support --period never",
    "feedback used-in t1 --agent support",
    "case list --agent support --basis gold",
    "reward list --agent support",
    "reward explain t1 --agent support",
    "reward reweight --agent support --weight thumb=2 --weight rating=0",
    "reward reweight --agent support --weight nothing",
    "label status --agent support",
    "label agreement --agent support",
    "dataset plan --agent support --dev 0.2",
    "dataset list --agent support",
    "dataset show chats --agent support",
    "dataset show nothing --agent support",
    "dataset health chats --agent support",
    "gate show --agent support",
    "models list --agent support",
    "models list --agent suport",
    "models show v0 --agent support",
    "models lineage v0 --agent support",
    "deployments --agent support --history",
    "secrets list",
    "keys list",
    "users list",
    "audit list --limit 3",
    "audit verify",
    "jobs list",
    "schedule list",
    "label questions --agent support",
    "label decide sug_none --agent support --verdict y --rater ann",
    "reward-model list --agent support",
    "plan ratings.jsonl",
)
"""Commands that change nothing."""


@pytest.fixture
def used_server(tmp_path: Path, command_line: Run) -> Iterator[GatewayWorld]:
    """A server of the home, where some commands ran already."""
    Path(FILE).write_text("\n".join(json.dumps(line) for line in LINES))
    endpoint = "models endpoint http://127.0.0.1:9/v1 --agent support --model large --price-in 2"
    case = "case add --agent support --input 2+2 --reference 4 --checker exact_answer"
    build = "dataset build --agent support --shape chats"
    for command in (f"import jsonl {FILE} --agent support", endpoint, case, build):
        assert command_line(*command.split())[0] == 0
    with opened_home(tmp_path / "home") as ws, running(ws) as world:
        yield world


@pytest.mark.slow
def test_results_tables_and_errors_are_the_same(
    used_server: GatewayWorld, command_line: Run
) -> None:
    remote = ("--server", used_server.url)
    for command in SAME:
        typed = command.split()
        here, there = command_line(*typed, "--json"), command_line(*remote, *typed, "--json")
        assert there[:2] == here[:2], command
        here, there = command_line(*typed), command_line(*remote, *typed)
        assert there[:2] == here[:2], command
        if here[0]:
            assert there[2].splitlines()[-1] == here[2].splitlines()[-1], command


def test_what_is_changed_there_is_changed(used_server: GatewayWorld, command_line: Run) -> None:
    remote = ("--server", used_server.url)
    for command in (
        f"import jsonl {FILE} --agent other",
        "feedback add t1 --agent other --correction Tomorrow --rater eve",
        "case add --agent other --input 1+1 --reference 2 --checker exact_answer",
        "gate declare --agent other --min-cases 9 --margin-eos 0.5",
        "models endpoint http://127.0.0.1:9/v1 --agent other --model small",
        "models alias live v0 --agent other",
        "label suggest --agent other --limit 3",
    ):
        code, out, err = command_line(*remote, *command.split(), "--json")
        assert code == 0 or "labels" in err, (command, err)
        assert code or json.loads(out), command
    code, out, _ = command_line(*["gate", "show", "--agent", "other", "--json"])
    assert json.loads(out)["policy"]["min_cases"] == 9
    code, out, _ = command_line(*["models", "list", "--agent", "other", "--json"])
    assert json.loads(out)[0]["aliases"] == ["live"]
    code, out, _ = command_line(*["feedback", "list", "--agent", "other", "--json"])
    assert {row["kind"] for row in json.loads(out)} == {"thumb", "rating", "correction"}
    erased = command_line(*remote, *["erase", "--agent", "other", "--subject", "none", "--yes"])
    assert erased[0] == 2


def test_keys_and_users_are_changed_there_as_here(
    used_server: GatewayWorld, command_line: Run
) -> None:
    remote = ("--server", used_server.url)
    code, out, err = command_line(*remote, *["keys", "add", "app", "--agent", "support"])
    assert code == 0 and out.startswith("tw_") and "only time that it is shown" in err
    for command, text in (
        ("users add bea --by-provider --role rater", "bea is rater of every agent"),
        ("users role bea editor --agent support", "bea is editor of agent support"),
        ("users remove bea", "bea is removed"),
        ("keys revoke app", "app opens nothing any more"),
        ("deployments --agent support --stop", ""),
        ("deployments --agent support --restart", ""),
    ):
        code, out, err = command_line(*remote, *command.split())
        assert code == 0 and text in err, (command, err)


def test_a_password_is_typed_here_and_never_written_into_a_command(
    used_server: GatewayWorld, command_line: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    remote = ("--server", used_server.url)
    for command, password, text in (
        ("users add bea --role rater", "correct horse battery", "bea is rater"),
        ("users password bea", "a new long password", "bea has a new password"),
    ):
        monkeypatch.setattr(sys, "stdin", io.StringIO(f"{password}\n"))
        code, out, err = command_line(*remote, *command.split())
        assert code == 0 and text in err, (command, err)
        assert password not in out + err
    assert users.authenticate(used_server.ws, "bea", "a new long password").name == "bea"
    monkeypatch.setattr(sys, "stdin", io.StringIO("short\n"))
    code, _, err = command_line(*remote, "users", "password", "bea")
    assert code == 2 and "password" in err


def test_files_are_written_here(
    used_server: GatewayWorld, command_line: Run, tmp_path: Path
) -> None:
    remote = ("--server", used_server.url)
    export = ["dataset", "export", "chats", "--agent", "support", "--to", "chats"]
    assert command_line(*remote, *export)[0] == 0
    assert {path.name for path in (tmp_path / "chats").iterdir()} >= {"manifest.json"}
    again, _, err = command_line(*remote, *export)
    assert again == 2 and "never overwritten" in err
    assert command_line(*remote, *["report", "v0", "--agent", "support"])[0] == 0
    assert (tmp_path / "support-v0.html").read_text().startswith("<!doctype html>")


def test_what_is_about_the_machine_stays_there(
    used_server: GatewayWorld, command_line: Run
) -> None:
    remote = ("--server", used_server.url)
    for command, reason in (
        ("hardware", "it is about the machine in front of you"),
        ("secrets set X", "a secret is typed where it is stored"),
        (
            f"import jsonl {FILE} --agent support --rejects r.jsonl",
            "--rejects: it concerns the server",
        ),
        ("import jsonl / --agent support", "accepts no folders"),
        ("dataset show chats", "--agent"),
    ):
        code, _, err = command_line(*remote, *command.split())
        assert code == 2 and reason in err, (command, err)


def test_a_server_that_is_none_is_said(command_line: Run, tmp_path: Path) -> None:
    for url, code in (
        ("http://127.0.0.1:9", 3),
        ("ftp://h", 2),
        ("http://u:p@h", 2),
        ("h:8787", 2),
    ):
        result = command_line("--server", url, "secrets", "list")
        assert result[0] == code and "server" in result[2]
    missing = ("--key-file", str(tmp_path / "none"))
    assert command_line("--server", "http://127.0.0.1:9", *missing, "secrets", "list")[0] == 2


def test_a_wrong_key_is_refused(
    used_server: GatewayWorld, command_line: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("THUMBWHEEL_KEY", "wrong")
    code, _, err = command_line("--server", used_server.url, "secrets", "list")
    assert code == 9 and "did not issue it" in err
    Path("key").write_text(used_server.ws.home.access_token.read_text())
    assert command_line("--server", used_server.url, "--key-file", "key", "secrets", "list")[0] == 0


def test_a_command_for_a_server_loads_nothing_heavy(used_server: GatewayWorld) -> None:
    code = (
        "import sys; from thumbwheel.cli.main import main\ntry: main()\nexcept SystemExit: pass\n"
        "print(*sys.modules, file=sys.stderr)"
    )
    typed = ["--server", used_server.url, "traces", "list", "--agent", "support", "--json"]
    environment = {
        **os.environ,
        "THUMBWHEEL_KEY": used_server.ws.home.access_token.read_text().strip(),
    }
    done = subprocess.run(
        [sys.executable, "-c", code, *typed],
        capture_output=True,
        text=True,
        check=True,
        env=environment,
    )
    assert json.loads(done.stdout)["traces"]
    loaded = {name.partition(".")[0] for name in done.stderr.split()}
    assert not loaded & {"torch", "sqlalchemy", "fastapi", "httpx2", "numpy", "yaml"}

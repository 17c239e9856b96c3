"""Settings are changed in thumbwheel.yaml by the home's owner: one line, and all else stays."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from thumbwheel.access import audit, keys
from thumbwheel.app.settings_changes import AT_START
from thumbwheel.core.config import Home, Sources
from thumbwheel.core.errors import ConfigError
from thumbwheel.core.settings_file import with_setting, without_setting
from thumbwheel.db.workspace import Workspace
from thumbwheel.evaluation.policy import GatePolicy
from thumbwheel.server.serve import assembled

FILE = """# ours
gate:          # strict, since March
  alpha: 0.05  # agreed with Ann
  min_cases: 30

  # the end of the gate
train:
  dpo: {beta: 0.2}
notify:
  channels:
    ops: {kind: slack, url_secret: SLACK}
"""


@dataclass
class SettingsWorld:
    """A server over a home with a settings file."""

    client: TestClient
    file: Path
    ws: Workspace

    @property
    def text(self) -> str:
        return self.file.read_text()

    def put(self, section: str, changes: Any, **headers: str) -> Any:
        return self.client.put(f"/api/settings/{section}", json=changes, headers=headers)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[SettingsWorld]:
    file = tmp_path / "thumbwheel.yaml"
    file.write_text(FILE)
    environment = {"THUMBWHEEL_GATE__MIN_GUARD": "40"}
    with (
        Workspace.open(Home(tmp_path / "home"), Sources.read(file, environment)) as ws,
        assembled(ws, "127.0.0.1") as application,
        TestClient(application, base_url="http://127.0.0.1") as client,
    ):
        client.headers["authorization"] = f"Bearer {ws.home.access_token.read_text().strip()}"
        yield SettingsWorld(client, file, ws)


def test_one_line_of_the_file_changes_and_the_setting_is_in_force(world: SettingsWorld) -> None:
    answer = world.put("gate", {"alpha": 0.01})
    assert answer.status_code == 200, answer.text
    assert answer.json()["changes"] == [
        {"setting": "alpha", "before": 0.05, "after": 0.01, "needs_restart": False}
    ]
    assert world.text == FILE.replace("alpha: 0.05", "alpha: 0.01")
    assert world.ws.settings(GatePolicy, "gate").alpha == 0.01
    entry = audit.entries(world.ws, 1)[0]
    assert entry.action == "settings.change"
    assert entry.content == {"section": "gate", "values": {"alpha": [0.05, 0.01]}}


def test_new_settings_and_sections_are_added_and_taken_out_again(world: SettingsWorld) -> None:
    assert world.put("dataset", {"dev": 0.2, "plan": {"discordance": 0.3}}).status_code == 200
    assert world.text.endswith("dataset:\n  dev: 0.2\n  plan:\n    discordance: 0.3\n")
    assert world.client.delete("/api/settings/dataset/plan.discordance").status_code == 200
    assert world.put("gate", {"open_guard": "reject"}).status_code == 200
    assert world.put("train.dpo", {"label_smoothing": 0.1}).status_code == 200
    assert "  min_cases: 30\n  open_guard: reject\n\n  # the end of the gate\n" in world.text
    assert "dpo: {label_smoothing: 0.1, beta: 0.2}" in world.text
    assert world.client.delete("/api/settings/gate/open_guard").status_code == 200
    assert world.client.delete("/api/settings/dataset/dev").status_code == 200
    assert "open_guard" not in world.text and "dataset" not in world.text


def test_a_wrong_value_is_refused_at_its_field_and_changes_nothing(world: SettingsWorld) -> None:
    for section, changes, field, words in (
        ("gate", {"alpha": 7}, "alpha", "less than"),
        ("gate", {"alpha": "much"}, "alpha", "valid number"),
        ("gate", {"min_guard": 5}, "min_guard", "THUMBWHEEL_GATE__MIN_GUARD"),
        ("gate", {"alhpa": 0.1}, "alhpa", "alpha"),
        ("notify", {"url": "https://elsewhere.example"}, "url", "numbers, switches and choices"),
        ("rewards", {"arithmetic": "x"}, "arithmetic", "numbers, switches and choices"),
    ):
        answer = world.put(section, changes)
        assert answer.status_code == 422, (changes, answer.text)
        assert answer.json()["field"] == field
        assert words in answer.text
    assert world.put("nowhere", {"a": 1}).status_code == 404
    assert world.text == FILE


def test_who_edits_the_file_meanwhile_is_not_overwritten(world: SettingsWorld) -> None:
    page = world.client.get("/settings?section=gate", headers={"accept": "text/html"}).text
    etag = page.partition('data-etag="')[2].partition('"')[0]
    world.file.write_text(FILE + "# by hand\n")
    answer = world.put("gate", {"alpha": 0.01}, **{"if-match": etag})
    assert answer.status_code == 412
    assert world.text == FILE + "# by hand\n"


def test_only_the_owner_of_the_home_changes_settings(world: SettingsWorld) -> None:
    editor = keys.add(world.ws, "editor", verbs=["edit", "run", "decide", "deploy"])
    answer = world.put("gate", {"alpha": 0.01}, authorization=f"Bearer {editor.secret}")
    assert answer.status_code == 403
    assert world.text == FILE


def test_what_waits_for_a_restart_is_said(world: SettingsWorld) -> None:
    answer = world.put("gateway", {"silence": 77.0})
    assert answer.json()["changes"][0]["needs_restart"]
    page = world.client.get("/settings?section=gateway", headers={"accept": "text/html"}).text
    assert "Restart the server to apply:" in page and "77" in page


def test_the_sections_that_need_a_restart_are_those_that_the_server_reads_at_its_start(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read = set()
    load = Sources.load

    def noted(sources: Sources, cls: Any, section: str, options: Any = None) -> Any:
        read.add(section)
        return load(sources, cls, section, options)

    monkeypatch.setattr(Sources, "load", noted)
    with (
        Workspace.open(Home(tmp_path / "home"), Sources({}, "none", {})) as ws,
        assembled(ws, "127.0.0.1") as application,
        TestClient(application, base_url="http://127.0.0.1") as client,
    ):
        client.get("/login")
    # a worker reads `jobs` when it starts, and maintenance `retention` whenever it looks
    assert read - {"retention"} == AT_START - {"jobs"}


@pytest.mark.parametrize(
    ("text", "path", "changed"),
    [
        ("", ["gate", "alpha"], "gate:\n  alpha: 1\n"),
        ("gate:\n", ["gate", "alpha"], "gate:\n  alpha: 1\n"),
        ("gate: {}  # none\n", ["gate", "alpha"], "gate:  # none\n  alpha: 1\n"),
        ("gate:\n  alpha:\n", ["gate", "alpha"], "gate:\n  alpha: 1\n"),
        ("gate:\r\n  beta: 2\r\n", ["gate", "alpha"], "gate:\r\n  beta: 2\r\n  alpha: 1\r\n"),
        ("a:\n    b: [1,\n       2]", ["a", "c"], "a:\n    b: [1,\n       2]\n    c: 1\n"),
        ("a:\n  b: |\n    x\n\nc: 1\n", ["a", "d"], "a:\n  b: |\n    x\n\n  d: 1\nc: 1\n"),
        ("a:\n  b:\n    c: 2\n# end\n", ["a", "b", "d"], "a:\n  b:\n    c: 2\n    d: 1\n# end\n"),
    ],
    ids=["empty", "null section", "braces", "null", "crlf", "list", "text block", "group"],
)
def test_forms_of_yaml_keep_all_but_the_setting(text: str, path: list[str], changed: str) -> None:
    assert with_setting(text, path, 1) == changed
    again = without_setting(changed, path)
    assert path[-1] + ":" not in again


@pytest.mark.parametrize("value", [1e-05, "off", "1", "a: b # c", True, 10**20, -0.5])
def test_a_value_comes_back_as_it_was(value: Any) -> None:
    import yaml

    assert yaml.safe_load(with_setting("a: {b: 1}", ["a", "b"], value)) == {"a": {"b": value}}


def test_a_form_of_yaml_that_would_change_more_is_refused() -> None:
    for text in (
        "base: &b {alpha: 1}\ngate: *b\n",
        "gate:\n  alpha: &a 1\nlog:\n  beta: *a\n",
        "gate: {alpha: 1}\ngate: {beta: 2}\n",
    ):
        with pytest.raises(ConfigError, match="Change it in the file itself"):
            with_setting(text, ["gate", "alpha"], 5)

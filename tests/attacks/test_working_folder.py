"""A working folder that a stranger prepared: modules that have the names of others, and settings in
a folder of everybody."""

from __future__ import annotations

import os
import re
from contextlib import closing
from pathlib import Path

import pytest

from tests.distributions import ROOT, source_files
from thumbwheel.core.config import FILE_NAME, Sources
from thumbwheel.core.errors import ConfigError, InputError
from thumbwheel.importers.detect import DOTENV, address_of
from thumbwheel.training.judge import JudgeRequest, RewardJudge

COMMAND = re.compile(r"\[\s*sys\.executable,\s*(\S+)")
SAFE = ('"-P",', '"-I",')
REPEATED = "*sys.orig_argv[1:]])"
"""A process that takes the place of this one, as it was started."""
OTHER = 54_321
"""A user of no file here."""


def test_no_child_looks_into_the_working_folder_first() -> None:
    commands = {
        (path.relative_to(ROOT).as_posix(), option)
        for path in source_files()
        for option in COMMAND.findall(path.read_text(encoding="utf-8"))
    }
    assert len(commands) > 10
    assert {command for command in commands if command[1] not in SAFE} == {
        ("src/thumbwheel/app/job_commands.py", REPEATED)
    }


def test_a_judge_imports_the_users_function_and_nothing_else_of_the_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("json", "resource", "pydantic", "typing_extensions", "yaml"):
        text = f"open({str(tmp_path / module)!r}, 'w').close()"
        (tmp_path / f"{module}.py").write_text(f"{text}\nraise ImportError(__name__)")
    function = "def score(prompt, answer, reference, **row): return len(answer)"
    (tmp_path / "rewards_of_the_user.py").write_text(function)
    monkeypatch.chdir(tmp_path)
    with closing(RewardJudge({"rewards_of_the_user:score": 1.0})) as judge:
        request = JudgeRequest({"prompt": [], "reference": None}, "four", "stop", [])
        (reward,) = judge.judge([request])
    assert reward.value == 4
    left = {path.name for path in tmp_path.iterdir() if not path.suffix}
    assert left <= {"__pycache__"}, "only the function of the user was compiled"


def give_away(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the file belong to another user than the one who reads it."""
    if os.geteuid() == 0:
        os.chown(file, OTHER, -1)
    else:
        monkeypatch.setattr(os, "geteuid", lambda: OTHER)


def test_settings_that_another_user_put_into_a_folder_of_everybody_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    file = Path(FILE_NAME)
    file.write_text("notify: {private: [evil]}")
    tmp_path.chmod(0o1777)
    assert Sources.read().file  # our own
    give_away(file, monkeypatch)
    with pytest.raises(ConfigError, match="another user"):
        Sources.read()
    assert Sources.read(file).file  # somebody named it
    tmp_path.chmod(0o755)
    assert Sources.read().file  # a folder that its owner shares with nobody, such as a mounted one


def test_an_address_that_another_user_put_into_a_folder_of_everybody_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("dotenv")
    monkeypatch.chdir(tmp_path)
    file = Path(DOTENV)
    monkeypatch.delenv("DATABASE_URL", raising=False)
    file.write_text("DATABASE_URL=postgresql://db.example/app\n")
    tmp_path.chmod(0o1777)
    give_away(file, monkeypatch)
    with pytest.raises(InputError, match="another user"):
        address_of("decisions")

"""What people do wrong, through the real command line: one clear error, the documented exit code,
clean standard output, nothing lost."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.command_line import Run
from thumbwheel.db import dialects

GOOD = (
    '{"type": "trace", "id": "t1", "input": "hi", "output": "ho"}\n'
    '{"type": "feedback", "target": {"trace": "t1"}, "kind": "thumb", "value": true}\n'
)


@pytest.fixture
def run(command_line: Run, tmp_path: Path) -> Run:
    (tmp_path / "good.jsonl").write_text(GOOD)
    return command_line


@pytest.fixture(scope="module")
def spoilable_base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny base that can be spoilt in many ways."""
    from tests.models.tiny_models import tiny_base

    return tiny_base(tmp_path_factory.mktemp("base"))


def test_the_version_needs_no_command(run: Run) -> None:
    code, out, _ = run("--version")
    assert code == 0 and out.startswith("thumbwheel ")


def test_every_command_has_an_example_in_its_help(run: Run) -> None:
    leaves = [
        "feedback add",
        "case add",
        "dataset build",
        "dataset export",
        "train sft",
        "evaluate",
        "models show",
        "models alias",
    ]
    for command in [*leaves, "plan", "import", "export", "report"]:
        code, out, _ = run(*command.split(), "--help")
        assert code == 0 and f"Example: thumbwheel {command} " in " ".join(out.split()), command


@pytest.mark.parametrize(
    ("setting", "why"),
    [
        ({"THUMBWHEEL_TRIAN__SFT__LORA_R": "3"}, "no setting has this name"),
        ({"THUMBWHEEL_DATASET__PLAN__KTO_MINN": "3"}, "Did you mean 'kto_min'"),
        ({"THUMBWHEEL_DATASET__DEV": "[1"}, "line 1, column 3"),
    ],
)
def test_settings_of_the_environment_are_never_ignored(
    run: Run, monkeypatch: pytest.MonkeyPatch, setting: dict[str, str], why: str
) -> None:
    for name, text in setting.items():
        monkeypatch.setenv(name, text)
    code, out, err = run("plan", "good.jsonl", "--json")
    assert (code, out) == (2, "") and why in err


@pytest.mark.parametrize(
    ("text", "why"),
    [("trian: {}", "no such section"), ("a:\n  - b\n c: 1", "line 3"), ("- a", "not a mapping")],
)
def test_a_file_of_settings_is_checked_by_plan_too(
    run: Run, tmp_path: Path, text: str, why: str
) -> None:
    (tmp_path / "thumbwheel.yaml").write_text(text)
    code, out, err = run("plan", "good.jsonl", "--json")
    assert (code, out) == (2, "") and why in err


def test_an_emptied_section_is_no_mistake(run: Run, tmp_path: Path) -> None:
    (tmp_path / "thumbwheel.yaml").write_text("train:\n#  sft:\n#    lora_r: 4\ndataset:\n")
    assert run("plan", "good.jsonl")[0] == 0


def test_plan_tells_what_it_could_not_take(run: Run, tmp_path: Path) -> None:
    rating = '{"type": "feedback", "target": {"trace": "t1"}, "kind": "rating", "value": %s}\n'
    (tmp_path / "bad.jsonl").write_text(GOOD + rating % "NaN" + rating % "9")
    code, out, _ = run("plan", "bad.jsonl", "--json")
    dropped = {why: count for why, count in json.loads(out)["drops"].items() if "line 3" in why}
    assert code == 0 and list(dropped.values()) == [2]


def test_text_that_no_database_can_keep_is_refused_at_the_door(run: Run, tmp_path: Path) -> None:
    run("import", "jsonl", "good.jsonl", "--agent", "a")
    (tmp_path / "nul.json").write_text('{"input": "a\\u0000b", "reference": "c"}')
    for arguments in (["--input", "h\udce9", "--reference", "x"], ["--file", "nul.json"]):
        code, out, err = run("case", "add", "--agent", "a", "--json", *arguments)
        assert (code, out) == (2, "")
        assert "case" in err or "NUL character" in err
    assert json.loads(run("case", "list", "--agent", "a", "--json")[1])["cases"] == []


def test_the_nearest_dataset_is_named(run: Run) -> None:
    run("import", "jsonl", "good.jsonl", "--agent", "a")
    run("dataset", "build", "--agent", "a", "--shape", "chats")
    code, _, err = run("dataset", "show", "chat", "--agent", "a")
    assert code == 2 and "Did you mean 'chats'" in err


@pytest.mark.parametrize(
    "arguments",
    [
        ("demo", "--home", "good.jsonl"),
        ("demo", "--emit", "good.jsonl"),
        ("demo", "--json", "no/x"),
    ],
)
def test_the_demo_looks_before_it_works(
    run: Run, tmp_path: Path, arguments: tuple[str, ...]
) -> None:
    code, out, err = run(*arguments)
    assert (code, out) == (2, "") and arguments[1] in err
    assert (
        not (tmp_path / "thumbwheel-demo").exists()
        and (tmp_path / "good.jsonl").read_text() == GOOD
    )


def _cut(folder: Path) -> None:
    (folder / "model.safetensors").write_bytes(os.urandom(3000))


def _no_json(folder: Path) -> None:
    (folder / "config.json").write_text("{{{")


def _no_tokenizer(folder: Path) -> None:
    for path in [*folder.glob("*token*"), *folder.glob("vocab*"), *folder.glob("merges*")]:
        path.unlink()


def _empty(folder: Path) -> None:
    for path in folder.iterdir():
        path.unlink()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (_cut, "damaged"),
        (_no_json, "config"),
        (_no_tokenizer, "no tokenizer"),
        (_empty, "no config.json"),
    ],
)
def test_a_spoilt_base_says_what_is_wrong(
    run: Run, spoilable_base: Path, tmp_path: Path, spoil: Callable[[Path], None], why: str
) -> None:
    spoilt = tmp_path / "spoilt"
    shutil.copytree(spoilable_base, spoilt)
    spoil(spoilt)
    (tmp_path / "more.jsonl").write_text(
        "".join(GOOD.replace("t1", f"t{i}").replace('"hi"', f'"hi {i}"') for i in range(12))
    )
    run("import", "jsonl", "more.jsonl", "--agent", "a")
    code, out, err = run(
        "train", "sft", "--agent", "a", "--base", str(spoilt), "--dry-run", "--json"
    )
    assert (code, out) == (5, "") and why in err
    assert run("train", "sft", "--agent", "a", "--base", "", "--dry-run")[0] == 2


def test_loading_a_model_draws_nothing_over_the_terminal(
    spoilable_base: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    from transformers.utils import logging

    from thumbwheel.engine.load import LoraSettings, attach_lora, load_adapter, load_base

    logging.enable_progress_bar()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        adapted, _ = attach_lora(load_base(str(spoilable_base))[0], LoraSettings(rank=2), seed=0)
        adapted.save_pretrained(spoilable_base.parent / "adapter", save_embedding_layers=False)
        load_adapter(load_base(str(spoilable_base))[0], spoilable_base.parent / "adapter")
    assert not [line for line in caught if issubclass(line.category, FutureWarning)]
    assert capfd.readouterr().err == "" and logging.is_progress_bar_enabled()


def test_waiting_for_another_writer_is_told(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run("import", "jsonl", "good.jsonl", "--agent", "a")
    monkeypatch.setattr(dialects, "SILENT_SECONDS", 0.2)
    hold = (
        "import fcntl, os, sys, time; h = os.open(sys.argv[1], os.O_RDWR); fcntl.flock(h, "
        "fcntl.LOCK_EX); print(flush=True); time.sleep(1)"
    )
    other = subprocess.Popen(
        [sys.executable, "-c", hold, str(tmp_path / "home" / "writer.lock")], stdout=subprocess.PIPE
    )
    assert other.stdout is not None
    other.stdout.readline()
    code, out, err = run("import", "jsonl", "good.jsonl", "--agent", "b", "--json")
    other.wait()
    other.stdout.close()
    assert (
        code == 0
        and json.loads(out)["stored"] == 2
        and err.count("waiting for another process") == 1
    )


def test_nobody_is_told_where_nobody_waits(run: Run) -> None:
    assert "waiting" not in run("import", "jsonl", "good.jsonl", "--agent", "a")[2]


def _process(*arguments: str, tmp_path: Path, **more: object) -> subprocess.Popen[str]:
    environment = os.environ | {"THUMBWHEEL_HOME": str(tmp_path / "home")}
    command = [sys.executable, "-m", "thumbwheel", *arguments]
    return subprocess.Popen(
        command, env=environment, cwd=tmp_path, stderr=subprocess.PIPE, text=True, **more
    )  # type: ignore[call-overload,no-any-return]


@pytest.mark.slow
@pytest.mark.parametrize(
    "how", [signal.SIGINT, pytest.param(signal.SIGTERM, marks=pytest.mark.repeat)]
)
def test_an_interrupted_import_keeps_whole_batches_and_goes_on(
    run: Run, tmp_path: Path, how: signal.Signals
) -> None:
    line = '{"type": "trace", "id": "t%d", "input": "hi %d", "output": "ho"}\n'
    count = 60_000
    (tmp_path / "many.jsonl").write_text("".join(line % (i, i) for i in range(count)))
    work = _process(
        "import",
        "jsonl",
        "many.jsonl",
        "--agent",
        "a",
        "--json",
        tmp_path=tmp_path,
        stdout=subprocess.PIPE,
    )
    wal = tmp_path / "home" / "thumbwheel.db-wal"
    while work.poll() is None and not (wal.exists() and wal.stat().st_size > 2_000_000):
        time.sleep(0.01)
    work.send_signal(how)
    out, err = work.communicate(timeout=60)
    assert (work.returncode, out) == (130, "") and "interrupted" in err and "Traceback" not in err
    report = json.loads(run("import", "jsonl", "many.jsonl", "--agent", "a", "--json")[1])
    assert (
        report["stored"] + report["duplicates"] == count
        and report["duplicates"] > 0
        and report["stored"] > 0
    )


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs /dev/full")
def test_a_full_disk_under_the_output_is_said(run: Run, tmp_path: Path) -> None:
    run("import", "jsonl", "good.jsonl", "--agent", "a")
    with Path("/dev/full").open("w") as full:
        work = _process(
            "feedback", "list", "--agent", "a", "--json", tmp_path=tmp_path, stdout=full
        )
        _, err = work.communicate(timeout=60)
    assert work.returncode == 7 and "No space left" in err and "Traceback" not in err

"""Nothing that was imported reaches the terminal as a control character, whatever way it is
printed."""

from __future__ import annotations

import json
import logging
import warnings
from pathlib import Path

import pytest

from tests.command_line import Run
from thumbwheel.core import log, present

EVIL = "\x1b[2J\x1b]0;owned\x07\x9b31m\x7f\rgone\u202etxt\u2066"


def harmless(text: str) -> bool:
    return not log.CONTROL.search(text)


def test_everything_that_prints_shows_control_characters(
    capsys: pytest.CaptureFixture[str],
) -> None:
    log.console.cache_clear()
    log.configure()
    log.say(EVIL)
    log.complain(EVIL)
    parts = [EVIL, present.Note(EVIL), present.Box(EVIL, EVIL)]
    present.show([*parts, present.Table(EVIL, (EVIL, "b"), [(EVIL, 1)])])
    present.show_json({EVIL: [EVIL]})
    present.show_json_line(EVIL)
    log.logger.warning("about %s", EVIL)
    logging.getLogger("another").error(EVIL)
    with log.progress(EVIL, 3) as advance:
        advance(1, EVIL)
    out, err = capsys.readouterr()
    assert harmless(out) and harmless(err)
    assert err.count(r"\x1b[2J") >= 4
    assert "gone" in out
    logging.basicConfig(force=True)


def test_json_stays_json_and_says_the_same(capsys: pytest.CaptureFixture[str]) -> None:
    present.show_json({"text": EVIL})
    assert json.loads(capsys.readouterr().out) == {"text": EVIL}


def test_rich_may_still_colour_and_move(monkeypatch: pytest.MonkeyPatch) -> None:
    import io

    log.console.cache_clear()
    terminal = log.console(stderr=False)
    terminal.file = io.StringIO()
    monkeypatch.setattr(terminal, "_force_terminal", True)
    monkeypatch.setattr(terminal, "_color_system", terminal._detect_color_system() or 1)
    terminal.print("[bold]x[/bold]")
    terminal.show_cursor(False)
    written = terminal.file.getvalue()
    log.console.cache_clear()
    assert "\x1b[?25l" in written


def test_commands_show_hostile_data_as_it_is_and_do_not_obey_it(
    command_line: Run, tmp_path: Path
) -> None:
    evil = tmp_path / f"a{EVIL.replace('/', '')}.csv"
    evil.write_text(
        f"question,answer,thumb,user_id,note{EVIL[:5]}\n"
        f"Hi{EVIL.replace(chr(13), '')},Hello{EVIL[:5]},{EVIL[:7]},u,x\n"
    )
    good = tmp_path / "good.jsonl"
    lines = [
        {
            "type": "trace",
            "id": f"t{EVIL}",
            "input": EVIL,
            "output": EVIL,
            "session": EVIL,
            "subject": EVIL,
        },
        {
            "type": "feedback",
            "target": {"trace": f"t{EVIL}"},
            "kind": "thumb",
            "value": True,
            "rater": EVIL,
            "comment": EVIL,
        },
        {
            "type": "feedback",
            "target": {"trace": f"t{EVIL}"},
            "kind": "label",
            "name": EVIL,
            "value": EVIL,
        },
        {
            "type": "case",
            "input": EVIL,
            "reference": EVIL,
            "checker": "exact_answer",
            "slices": {"a": EVIL},
        },
        {"type": EVIL},
    ]
    good.write_text("".join(json.dumps(line) + "\n" for line in lines))
    typed = [
        ("import", "--detect", str(evil)),
        ("import", "csv", str(evil), "--agent", "desk"),
        ("import", "csv", str(evil), "--agent", EVIL),
        ("import", str(evil), str(evil), "--agent", "desk"),
        ("plan", str(evil)),
        ("plan", str(good), EVIL),
        ("import", "--detect", str(good)),
        ("import", "jsonl", str(good), "--agent", "desk"),
        ("feedback", "list", "--agent", "desk"),
        ("feedback", "stats", "--agent", "desk"),
        ("case", "list", "--agent", "desk"),
        ("feedback", "stats", "--agent", EVIL),
        (EVIL,),
        ("feedback", "list", "--agent", "desk", "--json"),
        ("dataset", "build", "--agent", "desk", "--shape", "labels"),
        (f"--{EVIL}",),
        ("dataset", "show", "labels", "--agent", "desk"),
        ("feedback", f"--{EVIL}"),
        ("feedback", "used-in", EVIL, "--agent", "desk"),
        ("import", "jsonl", str(tmp_path / EVIL), "--agent", "desk"),
        ("--config", EVIL, "plan", str(good)),
    ]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for arguments in typed:
            _, out, err = command_line(*arguments)
            assert out or err
            assert harmless(out), (arguments, out)
            assert harmless(err), (arguments, err)

"""The demo that runs online, without its server: mails, and how far it came."""

from __future__ import annotations

from pathlib import Path

import pytest

from thumbwheel.core.errors import InputError
from thumbwheel.demo.commands import demo
from thumbwheel.demo.online import FORGERY, DemoProgress, OnlineOptions
from thumbwheel.demo.online_traffic import AnswerTally, mailbox


def test_no_two_mails_are_the_same_and_forgers_aim_at_habits() -> None:
    sizes = {"use": 40, FORGERY: 40, "trial": 20}
    box = mailbox(3, sizes, FORGERY)
    assert {stage: len(mails) for stage, mails in box.stages.items()} == sizes
    prompts = [mail.prompt for mails in box.stages.values() for mail in mails]
    assert len(set(prompts)) == 100
    aimed = [box.person.habit_of(mail) is not None for mail in box.stages[FORGERY]]
    assert sum(aimed) == 30
    assert mailbox(3, sizes, FORGERY).stages == box.stages


def test_only_an_unfinished_demo_with_the_same_options_goes_on(tmp_path: Path) -> None:
    path, options = tmp_path / "demo.json", OnlineOptions(seed=4)
    assert DemoProgress.read(path, options) is None
    progress = DemoProgress(path, options)
    AnswerTally(progress.answers.setdefault("use", {})).add("v0", True)
    progress.sent["use"] = 1
    progress.write()
    assert DemoProgress.read(path, options) == progress
    assert DemoProgress.read(path, OnlineOptions(seed=5)) is None
    progress.is_finished = True
    progress.write()
    assert DemoProgress.read(path, options) is None
    path.write_text("{}")
    assert DemoProgress.read(path, options) is None


def test_the_simulator_counts_right_answers() -> None:
    tally = AnswerTally({})
    for version, is_right in (("v1", True), ("v0", False), ("v1", False)):
        tally.add(version, is_right)
    assert tally.shares() == {"v0": 0.0, "v1": 0.5}


def test_options_of_the_other_demo_are_refused() -> None:
    with pytest.raises(InputError, match="one cycle"):
        demo(online=True, flip=True)

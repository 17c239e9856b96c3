"""The clock of the machine jumps, forwards and backwards: nobody gets a budget twice, a session for
longer, or a job a second time."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path

import pytest

from tests.worlds.gateway_world import opened_home
from tests.worlds.simulated_clock import simulated_clock
from thumbwheel.access import audit, keys, users, web_tokens
from thumbwheel.access.credentials import Credentials
from thumbwheel.access.gate import AccessGate, opened_gate
from thumbwheel.access.login_codes import SECONDS, LoginCodes
from thumbwheel.access.settings import AccessConfig
from thumbwheel.access.types import LOCAL_TOKEN
from thumbwheel.access.web_tokens import WebTokens
from thumbwheel.capture.feedback_token import DAY, DAYS, FeedbackTokens
from thumbwheel.core.usage import UsageFile
from thumbwheel.gateway.budget import Account, Budgets, CallTimes
from thumbwheel.gateway.refusal import Refusal
from thumbwheel.gateway.settings import Allowance
from thumbwheel.jobs import schedules, store
from thumbwheel.jobs.types import JobState, Missed

NOON = datetime(2026, 5, 4, 12, tzinfo=UTC)
ACCOUNT = Account("agent support", Allowance(tokens_per_day=100))
PASSWORD = "correct horse battery"
JUMPS = [timedelta(days=-400), timedelta(days=-1), timedelta(hours=-3), timedelta(days=1)]


@pytest.fixture
def gate(tmp_path: Path) -> Iterator[AccessGate]:
    with opened_home(tmp_path / "home") as ws:
        users.add(ws, "ann", password=PASSWORD, role="viewer")
        with opened_gate(ws, AccessConfig(), local=True, apps=False) as gate:
            yield gate


def cookie_of(value: str) -> Credentials:
    return Credentials(keys=(), session=value, csrf=None, is_foreign=False)


def key_of(value: str) -> Credentials:
    return Credentials(keys=(value,), session=None, csrf=None, is_foreign=False)


@pytest.mark.parametrize("jump", JUMPS)
def test_a_budget_is_not_given_twice(jump: timedelta, tmp_path: Path) -> None:
    with simulated_clock(NOON) as clock:
        used = UsageFile(tmp_path)
        budgets = Budgets(used, CallTimes())
        budgets.spend([ACCOUNT], 100, 0.0)
        clock.moment += jump
        budgets.spend([ACCOUNT], 1, 0.0)
        clock.moment -= jump
        for restarted in (False, True):
            if restarted:
                used.__exit__()
                budgets = Budgets(UsageFile(tmp_path), CallTimes())
            with pytest.raises(Refusal) as refusal:
                budgets.admit([ACCOUNT])
            assert refusal.value.status == 402
        # a wrong clock takes nothing from a day that nobody used
        clock.moment = NOON + timedelta(days=2)
        budgets.admit([ACCOUNT])


def test_a_session_and_a_key_end_with_their_hours(gate: AccessGate) -> None:
    (user,) = users.listed(gate.ws)
    hours = gate.config.session_hours
    with simulated_clock(NOON) as clock:
        session = gate.open_session(user.id)
        key = keys.add(gate.ws, "short", days=1).secret
        gate.directory.refresh()
        for jump in JUMPS[:3]:
            clock.moment = NOON + jump  # set back: both are still good for what they were made for
            assert gate.identify(cookie_of(session.cookie)) is not None
        clock.moment = NOON + timedelta(hours=hours, seconds=1)
        assert gate.identify(cookie_of(session.cookie)) is None
        clock.moment = NOON + timedelta(days=1, seconds=1)
        assert gate.identify(key_of(key)) is None


def test_a_token_of_a_clock_that_is_ahead_is_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tokens = WebTokens(tmp_path / "keys")
    real_time = time.time
    assert tokens.read(tokens.make(LOCAL_TOKEN, LOCAL_TOKEN.grants, 600)) is not None
    for seconds in (-7200, 7200):
        wrong_time = real_time() + seconds
        monkeypatch.setattr(web_tokens.time, "time", partial(float, wrong_time))
        token = tokens.make(LOCAL_TOKEN, LOCAL_TOKEN.grants, 600)
        monkeypatch.setattr(web_tokens.time, "time", real_time)
        assert tokens.read(token) is None


def test_a_code_counts_for_ten_minutes_on_either_side(tmp_path: Path) -> None:
    codes = LoginCodes(tmp_path / "codes")
    for age, counts in ((0, True), (-1, True), (SECONDS + 5, False), (-SECONDS - 5, False)):
        code = codes.make()
        (file,) = codes.folder.iterdir()
        made_at = time.time() - age
        os.utime(file, (made_at, made_at))
        assert codes.redeem(code) is counts, age
        assert not codes.redeem(code)


def test_a_feedback_token_ends(tmp_path: Path) -> None:
    tokens = FeedbackTokens.with_key(tmp_path / "key")
    now = time.time()
    token = tokens.make("support", "t1", "key_1", now)
    assert tokens.objection(token, "support", "t1", now - 10**9) is None
    later = now + (DAYS + 1) * DAY + 1
    assert tokens.objection(token, "support", "t1", later) == "the feedback token has expired"


def test_a_schedule_asks_for_no_job_twice(tmp_path: Path) -> None:
    with opened_home(tmp_path / "home") as ws:
        schedules.add(ws, "nightly", "reward pending", {"agent": "a"}, "30 3 * * *", now=NOON)

        def fired(moment: datetime) -> int:
            jobs = ws.db.write(lambda connection: schedules.fire(connection, moment))
            for job in jobs:
                end = partial(store.set_values, job_id=job.id, state=JobState.SUCCEEDED)
                ws.db.write(end)
            return len(jobs)

        night = NOON.replace(hour=3, minute=30) + timedelta(days=1)
        assert fired(night) == 1
        assert fired(night - timedelta(days=3)) == 0  # set back: the times before were not missed
        assert fired(night) == 0  # and this one is not made up for
        assert fired(night + timedelta(days=1)) == 1
        assert fired(night + timedelta(days=400)) == 1, "a jump of a year is one missed run"
        assert fired(night + timedelta(days=2)) in (0, 1)
        ahead = [row.next_at for row in schedules.schedules(ws)]
        assert ahead == [night + timedelta(days=3)], "it waits for no year to come"
        assert Missed.ONCE in [row.missed for row in schedules.schedules(ws)]


def test_the_audit_log_is_whole_over_every_jump(gate: AccessGate) -> None:
    with simulated_clock(NOON) as clock:
        for number, jump in enumerate(JUMPS):
            clock.moment = NOON + jump
            keys.add(gate.ws, f"key-{number}")
        verdict = audit.verify(gate.ws)
        assert verdict.problem is None and verdict.rows >= len(JUMPS)

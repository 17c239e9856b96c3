"""What a server and its successor count in one file."""

from __future__ import annotations

from pathlib import Path

import pytest

from thumbwheel.capture.gateway.budget import Account, Budgets
from thumbwheel.capture.gateway.refusal import Refusal
from thumbwheel.capture.gateway.settings import Allowance

ACCOUNT = Account("agent support", Allowance(tokens_per_day=100, cost_per_day=5.0))


def test_two_servers_add_up(tmp_path: Path) -> None:
    leaving = Budgets.in_file(tmp_path / "budgets.json")
    leaving.spend([ACCOUNT], 30, 1.0)
    successor = Budgets.in_file(tmp_path / "budgets.json")
    successor.spend([ACCOUNT], 40, 1.0)
    leaving.spend([ACCOUNT], 29, 1.0)
    leaving.close()
    successor.admit([ACCOUNT])
    successor.spend([ACCOUNT], 1, 0.5)
    successor.close()
    with pytest.raises(Refusal, match="its 100 tokens"):
        successor.admit([ACCOUNT])
    assert '"tokens": 100' in (tmp_path / "budgets.json").read_text()
    assert '"cost": 3.5' in (tmp_path / "budgets.json").read_text()

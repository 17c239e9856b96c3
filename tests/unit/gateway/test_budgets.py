"""What a server and its successor count in one file."""

from __future__ import annotations

from pathlib import Path

import pytest

from thumbwheel.core.usage import UsageFile
from thumbwheel.gateway.budget import Account, Budgets, CallTimes
from thumbwheel.gateway.refusal import Refusal
from thumbwheel.gateway.settings import Allowance

ACCOUNT = Account("agent support", Allowance(tokens_per_day=100, cost_per_day=5.0))


def test_two_servers_add_up(tmp_path: Path) -> None:
    with UsageFile(tmp_path) as leaving:
        Budgets(leaving, CallTimes()).spend([ACCOUNT], 30, 1.0)
        with UsageFile(tmp_path) as successor:
            Budgets(successor, CallTimes()).spend([ACCOUNT], 40, 1.0)
            Budgets(leaving, CallTimes()).spend([ACCOUNT], 29, 1.0)
            leaving.__exit__()
            budgets = Budgets(successor, CallTimes())
            budgets.admit([ACCOUNT])
            budgets.spend([ACCOUNT], 1, 0.5)
    with pytest.raises(Refusal, match="its 100 tokens"):
        budgets.admit([ACCOUNT])
    assert '"tokens of agent support": 100' in (tmp_path / "usage.json").read_text()
    assert '"cost of agent support": 3.5' in (tmp_path / "usage.json").read_text()

"""Two ranks that talk, until one of them falls silent: `python -m tests.rank_talk`, with torchrun's
variables; tests/unit/training/test_ranks.py starts it."""

from __future__ import annotations

import os
import signal
import sys

from thumbwheel.engine.ranks import LOST, RankLostError, RankOutOfMemoryError, Ranks


def main() -> int:
    """Return the exit code of a rank that lost the other one."""
    import torch

    ranks = Ranks.join(os.environ, patience=3.0)
    value = {
        "half": torch.tensor([0.5, ranks.rank], dtype=torch.bfloat16),
        "none": None,
        "pair": (0.1 + ranks.rank, [True, "Größe"]),
    }
    both = ranks.exchange(value, "a value")
    for rank, received in enumerate(both):
        assert received["half"].tolist() == [0.5, rank] and received["half"].dtype == torch.bfloat16
        assert received["none"] is None and received["pair"] == (0.1 + rank, [True, "Größe"])
    assert ranks.from_first(lambda: f"of rank {ranks.rank}", "a word") == "of rank 0"

    # A gradient that one rank has, one that both have, and one that nobody has.
    parameters = [torch.nn.Parameter(torch.zeros(3)) for _ in range(3)]
    parameters[0].grad = torch.full((3,), 1.0 + ranks.rank)
    if ranks.rank:
        parameters[1].grad = torch.full((3,), 5.0)
    ranks.sum_gradients(parameters)
    gradients = [parameter.grad for parameter in parameters]
    assert gradients[0].tolist() == [3.0] * 3 and gradients[1].tolist() == [5.0] * 3
    assert gradients[2] is None

    # One is short of memory while the other waits for its results.
    try:
        if ranks.rank:
            ranks.report_shortage(MemoryError("no room"))
        else:
            ranks.exchange(1, "results")
            raise AssertionError("nobody said anything")
    except RankOutOfMemoryError as error:
        assert str(error) == "rank 1: no room"

    # Both are at different points, then one is stopped.
    try:
        ranks.exchange(1, f"point {ranks.rank}")
        raise AssertionError("nobody noticed")
    except RankLostError as error:
        assert "point 0" in str(error) and "point 1" in str(error)
    if ranks.rank:
        os.kill(os.getpid(), signal.SIGSTOP)
    try:
        ranks.agree()
    except RankLostError as error:
        print(error, flush=True)
        return LOST
    return 0


if __name__ == "__main__":
    exit_code = main()
    sys.stdout.flush()
    os._exit(exit_code)

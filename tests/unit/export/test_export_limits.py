"""Every limit of every precision, pinned: at the limit an export passes, beyond it it fails and
says which one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from thumbwheel.export import parity
from thumbwheel.export.formats import FORMATS
from thumbwheel.export.parity import LIMITS, limits
from thumbwheel.export.types import ExportSource, Parity

PINNED = {
    "float32": (1e-5, 0.999, 0.25, None),
    "float16": (1e-3, 0.98, 0.25, None),
    "bfloat16": (1e-2, 0.95, 0.25, None),
    "F32": (1e-4, 0.99, 0.25, None),
    "F16": (1e-3, 0.99, 0.25, 0.05),
    "BF16": (1e-2, 0.95, 0.25, None),
    "Q8_0": (0.02, 0.90, None, None),
    "Q6_K": (0.05, 0.85, None, None),
    "Q5_K_M": (0.10, 0.80, None, None),
    "Q4_K_M": (0.20, 0.70, None, None),
    "Q3_K_M": (0.40, 0.60, None, None),
    "Q2_K": (0.80, 0.45, None, None),
}


def at_the_limit(dtype: str) -> Parity:
    limit = limits(dtype)
    return Parity(
        1,
        100,
        dtype,
        limit.logits or 1.0,
        limit.mean_kl,
        limit.top1,
        10.0,
        True,
        limit,
        base_kl=10.0,
    )


@pytest.mark.parametrize("dtype", PINNED)
def test_the_limits_of_a_precision(dtype: str) -> None:
    limit = limits(dtype)
    assert (limit.mean_kl, limit.top1, limit.of_effect, limit.logits) == PINNED[dtype]
    exact = at_the_limit(dtype)
    assert exact.failures == []
    assert replace(exact, mean_kl=limit.mean_kl * 1.01).failures
    (too_few,) = replace(exact, top1=limit.top1 - 0.001).failures
    assert "top-1 agreement" in too_few
    apart = replace(exact, max_abs_diff=exact.max_abs_diff * 1.01).failures
    assert ["a logit differs" in text for text in apart] == ([True] if limit.logits else [])
    drowned = replace(exact, effect_kl=limit.mean_kl * 3).failures
    assert bool(drowned) == (limit.of_effect is not None)


class WrongInAnswers:
    """An opened export whose logits are the model's wherever a prompt is read, and others where it
    answers."""

    def __init__(self, opened: Any, prompts: list[int]) -> None:
        self._opened, self._prompts = opened, prompts

    def __getattr__(self, name: str) -> Any:
        return getattr(self._opened, name)

    def logits(self, rows: Sequence[Sequence[int]]) -> list[torch.Tensor]:
        """The last positions of each row; those of the answer are turned around."""
        changed = []
        for row, logits, prompt_length in zip(
            rows, self._opened.logits(rows), self._prompts, strict=True
        ):
            answered = len(row) - prompt_length
            changed.append(
                torch.cat([logits[: len(logits) - answered], -logits[len(logits) - answered :]])
            )
        return changed


def test_an_export_that_is_wrong_in_its_answers_alone_fails(
    tiny_model: Path, adapter: Path, tmp_path: Path
) -> None:
    source = ExportSource(str(tiny_model), adapter, str(tiny_model), tmp_path / "scratch")
    folder = tmp_path / "merged"
    folder.mkdir()
    form = FORMATS.get("merged")
    form.write(source, folder)
    reference = parity.reference(source, parity.PROBES)
    answers = [
        len(dialogue) - len(prompt)
        for dialogue, prompt in zip(reference.dialogues, reference.prompts, strict=True)
    ]
    assert all(
        dialogue[: len(prompt)] == prompt
        for dialogue, prompt in zip(reference.dialogues, reference.prompts, strict=True)
    )
    assert max(answers) == parity.ANSWER
    assert parity.compare_folder(reference, form, folder).failures == []

    class Wrong:
        """The format, opened wrongly."""

        def open(self, folder: Path, dtype: Any) -> WrongInAnswers:
            return WrongInAnswers(form.open(folder, dtype), list(map(len, reference.prompts)))

    assert any(
        "top-1 agreement" in text
        for text in parity.compare_folder(reference, Wrong(), folder).failures
    )  # type: ignore[arg-type]


def test_no_limit_is_unpinned() -> None:
    assert len(LIMITS) == len(PINNED)
    assert limits("a precision that nobody knows") == LIMITS["float32"]

"""An evaluation shows its result by system prompt, where the cases have several."""

from __future__ import annotations

from pathlib import Path

from tests.worlds.gateway_world import AGENT, opened_home
from thumbwheel.capture.cases import add_case
from thumbwheel.capture.prompts import store_prompt
from thumbwheel.evaluation.store import PROMPT_SLICE, judgeable
from thumbwheel.models.types import Agent

SUPPORT = Agent.named(AGENT)


def test_cases_with_several_prompts_have_a_slice_for_each(tmp_path: Path) -> None:
    with opened_home(tmp_path / "home") as ws:

        def add(number: int, system: str | None, slices: dict[str, str] | None = None) -> str:
            chat = [{"role": "user", "content": f"Question {number}?"}]
            if system is not None:
                chat = [{"role": "system", "content": system}, *chat]
            return add_case(ws, AGENT, "ann", input=chat, reference="Yes.", slices=slices)

        def slices() -> dict[str, str | None]:
            with ws.db.read() as connection:
                cases = judgeable(connection, SUPPORT.id, "gold")
            return {case.id: case.slices.get(PROMPT_SLICE) for case in cases}

        short = add(1, "Be short.", {"topic": "bill"})
        assert slices() == {short: None}
        stored = store_prompt(ws, SUPPORT, "greeting", "Be short.")
        kind = add(2, "Be kind.")
        bare = add(3, None)
        named = add(4, "Be kind.", {PROMPT_SLICE: "of ours"})
        by_case = slices()
        assert by_case[short] == stored.title == "greeting v1"
        assert by_case[bare] == "none" and by_case[named] == "of ours"
        assert by_case[kind] not in (None, "none", "greeting v1")

"""`judge`: a language model says which side's answer is better: the win rate, with the places of
the two answers swapped.

Each pair is asked in both orders; where the verdicts differ, it is a tie. How often the judge
agreed with itself stands in `details`, with its stated agreement with people, where there is such a
statement. The judge is an OpenAI-compatible endpoint (judge_url, judge_model).
"""

from __future__ import annotations

from collections import Counter
from functools import cached_property
from typing import Any, ClassVar

from thumbwheel.core import ids
from thumbwheel.evaluation import compare
from thumbwheel.evaluation.measure import blocked
from thumbwheel.evaluation.suite import Replies, Suite, SuiteMeasures
from thumbwheel.evaluation.types import Ask, Message
from thumbwheel.rewards.function import Case
from thumbwheel.rewards.functions import FUNCTIONS

WINS = "judged better"


class Judge(Suite):
    """See the module."""

    name: ClassVar[str] = "judge"
    of_cases: ClassVar[bool] = True

    def unfit(self) -> str:
        """Without prompts or a judge."""
        if not self.config.judge_url or not self.config.judge_model:
            return "no judge is named (judge_url, judge_model)"
        return "" if self.prompts else "no prompt is held out"

    @cached_property
    def prompts(self) -> list[tuple[list[Message], str]]:
        """Held-out prompts with their groups, each once."""
        rows = [(one.prompt, one.group) for one in self.material.cases]
        rows += [(one.prompt, one.group) for one in self.material.given if one.tools is None]
        return list({ids.canonical(prompt): (prompt, group) for prompt, group in rows}.values())

    def asks(self) -> list[Ask]:
        """Every prompt."""
        return [Ask(prompt, self.config.max_new_tokens) for prompt, _ in self.prompts]

    def outcome(self, before: Replies, after: Replies) -> SuiteMeasures:
        """Equal answers are ties without a question; a pair without a verdict is left out."""
        config, both = (
            self.config,
            [place for place in range(len(self.prompts)) if before[place] and after[place]],
        )
        judge: Any = FUNCTIONS.get("judge").create(
            {
                "url": config.judge_url,
                "model": config.judge_model,
                "agreement": config.judge_agreement,
                "home": self.material.home,
                "api_key_variable": config.key_variable,
                "parallel": config.parallel,
            },
            "suite judge",
        )
        texts = [(before[place][0].text.strip(), after[place][0].text.strip()) for place in both]
        pairs = [
            Case(new, prompt=self.prompts[place][0], mates=(old,))
            for place, (old, new) in zip(both, texts, strict=True)
        ]
        scores = self.material.verdicts(judge, pairs)
        known = [
            (score, self.prompts[place][1])
            for place, score in zip(both, scores, strict=True)
            if score.value is not None
        ]
        missing = Counter(
            f"no verdict: {str(score.evidence.get('reason'))[:120]}"
            for score in scores
            if score.value is None
        )
        if not known:
            return SuiteMeasures(None, dropped=missing, blocked=blocked(scores))
        wins, groups = (
            [float(score.value or 0.0) for score, _ in known],
            [group for _, group in known],
        )
        asked = [
            score
            for score, (old, new) in zip(scores, texts, strict=True)
            if old != new and score.value is not None
        ]
        torn = sum(score.evidence["contradicted_itself"] for score in asked)
        details = {
            "win_rate": sum(wins) / len(wins),
            "wins": wins.count(1.0),
            "ties": wins.count(0.5),
            "losses": wins.count(0.0),
            "judge": config.judge_model,
            "agrees_with_itself": 1 - torn / len(asked) if asked else None,
            "agreement_with_people": stated(judge.statement()),
            "may_not_gate": judge.may_not_gate(),
        }
        losses = [1 - one for one in wins]
        main = lambda level: compare.measure(WINS, losses, wins, groups, level)  # noqa: E731
        return SuiteMeasures(
            main, details=details, judges=("judge",), dropped=missing, blocked=blocked(scores)
        )


def stated(statement: dict[str, Any] | str) -> dict[str, Any] | None:
    """Kappa with people, as `thumbwheel label trust` wrote and signed it; None where the judge says
    instead why it has no statement."""
    if isinstance(statement, str):
        return None
    return {name: statement.get(name) for name in ("kappa", "low", "high", "pairs")}

"""`judge`: a language model says which of two answers is better; the measure is the win rate.

Each pair is asked in both orders; where the verdicts differ, it is a tie. `details` has how often
the judge agreed with itself, and its agreement with people where that is stated. The judge is an
OpenAI-compatible endpoint (judge_url, judge_model).
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
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


@dataclass(frozen=True)
class HeldOutPrompt:
    """A prompt and its group."""

    messages: list[Message]
    group: str


class JudgeSuite(Suite):
    name: ClassVar[str] = "judge"
    of_cases: ClassVar[bool] = True

    def unfit(self) -> str:
        if not self.config.judge_url or not self.config.judge_model:
            return "no judge is named (judge_url, judge_model)"
        return "" if self.prompts else "no prompt is held out"

    @cached_property
    def prompts(self) -> list[HeldOutPrompt]:
        """Held-out prompts with their groups, each once."""
        prompts = [HeldOutPrompt(case.prompt, case.group) for case in self.context.cases]
        without_tools = [answer for answer in self.context.recorded_answers if answer.tools is None]
        prompts += [HeldOutPrompt(answer.prompt, answer.group) for answer in without_tools]
        return list({ids.canonical(prompt.messages): prompt for prompt in prompts}.values())

    def asks(self) -> list[Ask]:
        """Ask every prompt."""
        return [Ask(prompt.messages, self.config.max_new_tokens) for prompt in self.prompts]

    def outcome(self, before: Replies, after: Replies) -> SuiteMeasures:
        """Measure the win rate. Equal answers are ties and the judge is not asked about them; a
        pair without a verdict is left out."""
        judge = self._judge()

        # Ask about every prompt that both responders answered.
        pairs = []
        groups = []
        for prompt, first, second in zip(self.prompts, before, after, strict=True):
            if first and second:
                old, new = first[0].text.strip(), second[0].text.strip()
                pairs.append(Case(new, prompt=prompt.messages, mates=(old,)))
                groups.append(prompt.group)
        scores = self.context.score_by_judge(judge, pairs)

        # Count the verdicts.
        wins = []
        groups_of_wins = []
        dropped = Counter[str]()
        asked = contradictions = 0
        for pair, score, group in zip(pairs, scores, groups, strict=True):
            if score.value is None:
                dropped[f"no verdict: {str(score.evidence.get('reason'))[:120]}"] += 1
                continue
            wins.append(float(score.value))
            groups_of_wins.append(group)
            if pair.text != pair.mates[0]:
                asked += 1
                contradictions += score.evidence["contradicted_itself"]
        blocked_reasons = blocked(scores)
        if not wins:
            return SuiteMeasures(None, dropped=dropped, blocked=blocked_reasons)
        losses = [1 - win for win in wins]
        details = {
            "win_rate": sum(wins) / len(wins),
            "wins": wins.count(1.0),
            "ties": wins.count(0.5),
            "losses": wins.count(0.0),
            "judge": self.config.judge_model,
            "agrees_with_itself": 1 - contradictions / asked if asked else None,
            "agreement_with_people": stated_agreement(judge.statement()),
            "may_not_gate": judge.may_not_gate(),
        }
        return SuiteMeasures(
            lambda level: compare.measure(WINS, losses, wins, groups_of_wins, level),
            details=details,
            judges=("judge",),
            dropped=dropped,
            blocked=blocked_reasons,
        )

    def _judge(self) -> Any:
        settings = {
            "url": self.config.judge_url,
            "model": self.config.judge_model,
            "agreement": self.config.judge_agreement,
            "home": self.context.home,
            "api_key_variable": self.config.key_variable,
            "parallel": self.config.parallel,
        }
        return FUNCTIONS.get("judge").create(settings, "suite judge")


def stated_agreement(statement: dict[str, Any] | str) -> dict[str, Any] | None:
    """Return the kappa with people, as `thumbwheel label trust` wrote and signed it; None if the
    judge gives the reason why it has no statement."""
    if isinstance(statement, str):
        return None
    return {name: statement.get(name) for name in ("kappa", "low", "high", "pairs")}

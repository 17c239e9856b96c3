"""`format_compliance`: the answer keeps the rules of form that its agent has; by default: no XML
outside of code.

Code (fenced blocks, `inline code`) is taken out before XML is looked for, and what only looks like
a tag is none: generics such as `List<int>`, placeholders such as `<stdin>` or `<your name>`,
comparisons. A tag is a closing one, a self-closing one, one with attributes, one whose closing tag
follows, or one of `forbidden_tags` in any form. Each violation takes `penalty`, all of them `most`
at the most.
"""

from __future__ import annotations

import json
import re

from pydantic import Field

from thumbwheel.core.config import Config
from thumbwheel.rewards.function import Case, JudgementStatus, RewardFunction, Score

FENCE = re.compile(r"^ {0,3}(`{3,}|~{3,})(.*)$")
INLINE = re.compile(r"`[^`\n]{1,500}`")
TAG = re.compile(
    r"(?P<generic>(?<=\w))?<(?P<close>/?)(?P<name>[A-Za-z][\w.:-]{0,60})(?P<rest>(?:\s[^<>]{0,500})?/?)>"
)
ATTRIBUTE = re.compile(r"\s[\w:.-]+\s*=\s*[\"'{]")


class FormatComplianceConfig(Config):
    """Settings of `format_compliance`: the rules of one agent."""

    xml: bool = False
    """XML and HTML tags are allowed everywhere."""
    allowed_tags: tuple[str, ...] = ()
    """Tags that are allowed although `xml` is not."""
    forbidden_tags: tuple[str, ...] = (
        "think",
        "thinking",
        "reasoning",
        "tool_call",
        "function_call",
        "answer",
        "response",
        "final_answer",
    )
    """Tags that are no placeholders: each is a violation even where it is never closed."""
    fences: bool = True
    """Fenced code blocks are allowed; one that is never closed is a violation in any case."""
    must_contain: tuple[str, ...] = ()
    """Texts that have to be there; upper and lower case are the same."""
    must_not_contain: tuple[str, ...] = ()
    """Texts that must not be there; upper and lower case are the same."""
    most_characters: int | None = Field(default=None, gt=0)
    """The answer is not longer than this."""
    valid_json: bool = False
    """The whole answer is JSON."""
    penalty: float = Field(default=0.1, gt=0, le=1)
    """What one violation takes."""
    most: float = Field(default=0.5, gt=0, le=1)
    """What all violations together take at the most."""


class FormatCompliance(RewardFunction[FormatComplianceConfig]):
    Config = FormatComplianceConfig
    case_settings = frozenset(
        {
            "allowed_tags",
            "fences",
            "forbidden_tags",
            "most",
            "most_characters",
            "must_contain",
            "must_not_contain",
            "penalty",
            "valid_json",
            "xml",
        }
    )
    version = 2
    reads = frozenset({"text"})

    def judge(self, case: Case) -> Score:
        """Return 1 - min(most, penalty * violations); evidence: the first twenty violations.

        An empty answer that breaks no rule has no form to judge: a full score would call it a good
        one.
        """
        broken = self.violations(case.text)
        if not broken and not case.text.strip():
            return Score.none(JudgementStatus.NOT_APPLICABLE, "the answer is empty")
        deduction = min(self.config.most, self.config.penalty * len(broken))
        return Score(
            1 - deduction,
            evidence={"violations": len(broken), "first": broken[:20]},
            well_formed=not broken,
        )

    def violations(self, text: str) -> list[str]:
        """Return each violation in a few words, in the order of the rules."""
        prose, fenced, open_fence = without_code(text)
        folded, rules = text.casefold(), self.config
        violations = [] if rules.xml else self._tags(prose)
        if open_fence:
            violations.append("a code fence that is never closed")
        if fenced and not rules.fences:
            violations.append(f"{fenced} fenced code blocks")
        missing = [word for word in rules.must_contain if word.casefold() not in folded]
        violations += [f"without {word!r}" for word in missing]
        forbidden = [word for word in rules.must_not_contain if word.casefold() in folded]
        violations += [f"with {word!r}" for word in forbidden]
        if rules.most_characters is not None and len(text) > rules.most_characters:
            violations.append(f"{len(text)} characters")
        if rules.valid_json and not is_json(text):
            violations.append("no JSON")
        return violations

    def _tags(self, prose: str) -> list[str]:
        allowed = {name.casefold() for name in self.config.allowed_tags}
        forbidden = {name.casefold() for name in self.config.forbidden_tags}
        matches = [tag for tag in TAG.finditer(prose) if tag["name"].casefold() not in allowed]
        closed = {tag["name"].casefold() for tag in matches if tag["close"]}

        def is_tag(match: re.Match[str]) -> bool:
            name, rest = match["name"].casefold(), match["rest"]
            if match["close"] or rest.endswith("/") or name in forbidden or name in closed:
                return True
            return match["generic"] is None and ATTRIBUTE.match(rest) is not None

        return [match[0][:60] for match in matches if is_tag(match)]


def without_code(text: str) -> tuple[str, int, bool]:
    """Return (the text without fenced and inline code, the number of fenced blocks, whether the
    last one is never closed)."""
    lines: list[str] = []
    fence, count = "", 0
    for line in text.split("\n"):
        fence_match = FENCE.match(line)
        if fence:
            closing = (
                fence_match and fence_match[1].startswith(fence) and not fence_match[2].strip()
            )
            fence = "" if closing else fence
        elif fence_match and not (fence_match[1][0] == "`" and "`" in fence_match[2]):
            fence, count = fence_match[1], count + 1
        else:
            lines.append(INLINE.sub("", line))
    return "\n".join(lines), count, bool(fence)


def is_json(text: str) -> bool:
    """Return whether the whole text parses as JSON."""
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True

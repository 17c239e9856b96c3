"""Tokens that let a web page judge one trace and do nothing else: signed with a key of the home,
valid for a time, so that no key of the API is ever in a page."""

from __future__ import annotations

import hmac
import re
import time
from dataclasses import dataclass
from pathlib import Path

from thumbwheel.core.seal import Seal, make_seal

DAYS = 30
"""How long a token is valid at least."""
DAY = 86_400
KIND = "feedback token"
_TOKEN = re.compile(
    r"f2\.(?P<expires>[0-9]{1,12})\.(?P<maker>[A-Za-z0-9_]{1,64})\.(?P<mac>[0-9a-f]{64})"
)


@dataclass(frozen=True)
class FeedbackTokens:
    """Makes and checks the tokens of one home."""

    seal: Seal

    @classmethod
    def with_key(cls, path: Path) -> FeedbackTokens:
        """Those signed with the key in `path`, which is made where there is none."""
        return cls(make_seal(path))

    def make(self, agent: str, trace: str, maker: str, now: float | None = None) -> str:
        """The token for the trace of that name, which the principal `maker` asked for: the same
        one all day, so that a page that is opened again is no other rater."""
        today = int(time.time() if now is None else now) // DAY
        expires = (today + DAYS + 1) * DAY
        return f"f2.{expires}.{maker}.{self._mac(agent, trace, maker, expires)}"

    def voice_of(self, token: str) -> tuple[str, str]:
        """(sender, rater) of what the bearer says: the principal that the token was made for
        answers for it, and the token is one rater, whatever names its bearer gives."""
        match = _TOKEN.fullmatch(token)
        if match is None:
            return "", ""  # `objection` refuses it
        return match["maker"], f"token:{self.seal.of(KIND, token)[:16]}"

    def objection(self, token: str, agent: str, trace: str, now: float | None = None) -> str | None:
        """Why the token does not let its bearer judge this trace; None where it does."""
        match = _TOKEN.fullmatch(token)
        if match is None:
            return "it is no feedback token"
        expires = int(match["expires"])
        if not hmac.compare_digest(match["mac"], self._mac(agent, trace, match["maker"], expires)):
            return f"the feedback token is not for trace {trace!r} of agent {agent!r}"
        if expires < (time.time() if now is None else now):
            return "the feedback token has expired"
        return None

    def _mac(self, agent: str, trace: str, maker: str, expires: int) -> str:
        return self.seal.of(KIND, f"{agent}\0{trace}\0{maker}\0{expires}")


def is_feedback_token(bearer: str) -> bool:
    """Whether what stands after Bearer is such a token, and not a key of the API."""
    return bearer.startswith(("f1.", "f2."))

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
        """Return tokens signed with the key in `path`; create the key if it is missing."""
        return cls(make_seal(path))

    def make(self, agent: str, trace: str, maker: str, now: float | None = None) -> str:
        """Return a token for the trace of that name, requested by the principal `maker`. It is the
        same all day, so a page that is opened again does not count as another rater."""
        today = int(time.time() if now is None else now) // DAY
        expires = (today + DAYS + 1) * DAY
        return f"f2.{expires}.{maker}.{self._mac(agent, trace, maker, expires)}"

    def voice_of(self, token: str) -> tuple[str, str]:
        """Return (sender, rater) for feedback sent with this token. The sender is the principal
        that the token was made for; the rater is the token, whatever name its bearer gives. Both
        are empty for an invalid token."""
        match = _TOKEN.fullmatch(token)
        if match is None:
            return "", ""  # `objection` refuses it
        return match["maker"], f"token:{self.seal.of(KIND, token)[:16]}"

    def objection(self, token: str, agent: str, trace: str, now: float | None = None) -> str | None:
        """Return why the token does not allow its bearer to judge this trace, or None if it
        does."""
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
    """Return whether the text after Bearer is a feedback token, not an API key."""
    return bearer.startswith(("f1.", "f2."))

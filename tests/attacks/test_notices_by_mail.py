"""A title that decodes to a line break adds no header to a mail."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from thumbwheel.notify.mail import mail
from thumbwheel.notify.settings import ChannelConfig
from thumbwheel.notify.types import Notice

CHANNEL = ChannelConfig.model_validate(
    {"kind": "email", "host": "mail", "sender": "a@b.c", "to": ["d@e.f"]}
)


@pytest.mark.parametrize(
    "title",
    [
        "T=?utf-8?q?=0d=0aBcc:_x?=itle",
        "=?utf-8?b?DQpCY2M6IHg=?=",
        "=?utf-8?q?=0aBcc:_x?=",
        "a =?us-ascii?Q?b=0d=0a?= =?utf-8?q?=0d=0aBcc:_x?=",
        "=?utf-8?q?=3D=3Futf-8=3Fq=3F=3D0d=3D0aBcc:_x=3F=3D?=",
        "T\r\nBcc: x",
        "T\x00\x1b\x7f\x85\u2028Bcc: x",
    ],
)
def test_a_title_is_one_header(title: str) -> None:
    notice = Notice("k", "decision", "alpha", title, "text", "/agents/alpha", datetime.now(UTC))
    head = bytes(mail(CHANNEL, notice, "http://h")).split(b"\n\n")[0]
    assert b"\nBcc" not in head and b"\r" not in head
    assert b"\nAuto-Submitted: auto-generated" in head

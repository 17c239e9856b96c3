"""Notices by HTTP: as JSON that is signed, and in the form that Slack takes.

The receiver of a webhook computes HMAC-SHA-256 with the shared secret over the header
`x-thumbwheel-timestamp`, a full stop, and the body, and compares it with `x-thumbwheel-signature`
behind `v1=`. It refuses old timestamps, so that nobody sends a recorded one again. The header
`x-thumbwheel-delivery` is the same for each attempt at the same notice.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import time
from collections.abc import Mapping
from urllib.parse import urlsplit

import httpx2

from thumbwheel.core.addresses import RefusedAddress, is_listed
from thumbwheel.core.errors import DeliveryError
from thumbwheel.llm.checked_transport import CheckedTransport
from thumbwheel.notify.settings import NotifyConfig
from thumbwheel.notify.types import Notice

SECONDS = 10.0
"""In which a receiver has to answer."""
JSON = {"content-type": "application/json", "user-agent": "thumbwheel"}


def signed(notice: Notice, link: str, secret: str, timestamp: int) -> tuple[bytes, dict[str, str]]:
    """Return the body and headers of a webhook that is sent at `timestamp`, in seconds since
    1970."""
    body = json.dumps(notice.to_json() | {"url": link}, ensure_ascii=False).encode()
    headers = {
        **JSON,
        "x-thumbwheel-timestamp": str(timestamp),
        "x-thumbwheel-signature": f"v1={signature(secret, timestamp, body)}",
        "x-thumbwheel-delivery": hashlib.sha256(notice.key.encode()).hexdigest()[:32],
    }
    return body, headers


def signature(secret: str, timestamp: int, body: bytes) -> str:
    """Return the HMAC-SHA-256 over timestamp and body, in hex."""
    content = f"{timestamp}.".encode() + body
    return hmac.new(secret.encode(), content, hashlib.sha256).hexdigest()


def slack_body(notice: Notice, link: str) -> bytes:
    """Return the payload for an incoming webhook of Slack or a compatible service."""
    lines = [f"*{_escaped(notice.title)}*", _escaped(notice.text)]
    if link.startswith(("http://", "https://")):
        lines.append(f"<{link}|Open>")
    return json.dumps({"text": "\n".join(lines)}, ensure_ascii=False).encode()


def _escaped(text: str) -> str:
    """Escape the characters that Slack treats as markup."""
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def post_webhook(
    url: str, notice: Notice, link: str, secret: str, config: NotifyConfig, name: str
) -> None:
    """Send a signed webhook. Raises DeliveryError if the receiver does not accept it."""
    body, headers = signed(notice, link, secret, int(time.time()))
    _post(url, body, headers, config, name)


def post_slack(url: str, notice: Notice, link: str, config: NotifyConfig, name: str) -> None:
    """Send the notice to Slack. Raises DeliveryError if Slack does not accept it."""
    _post(url, slack_body(notice, link), JSON, config, name)


def _post(
    url: str, body: bytes, headers: Mapping[str, str], config: NotifyConfig, name: str
) -> None:
    what = f"channel {name!r}"
    transport = CheckedTransport(private=is_listed(url, config.private))
    try:
        with httpx2.Client(transport=transport, timeout=SECONDS) as client:
            status = client.post(url, content=body, headers=dict(headers)).status_code
    except RefusedAddress as error:
        host = urlsplit(url).netloc
        fix = f"If that is meant, add {host!r} to notify.private in thumbwheel.yaml"
        raise DeliveryError(what, str(error), fix) from None
    except (httpx2.HTTPError, httpx2.InvalidURL, OSError) as error:
        # its text may hold the address, which may be a secret
        why = f"the receiver does not answer ({type(error).__name__})"
        raise DeliveryError(what, why, "Check its address, and whether it runs") from None
    if not 200 <= status < 300:
        why = f"the receiver answers HTTP {status}"
        raise DeliveryError(what, why, "See the receiver's log")

"""Notices by e-mail, over SMTP."""

from __future__ import annotations

import smtplib
import socket
import ssl
from email.message import EmailMessage
from email.utils import format_datetime
from typing import Any

from thumbwheel.core.addresses import RefusedAddress, allowed_addresses, is_listed
from thumbwheel.core.errors import DeliveryError
from thumbwheel.notify.settings import ChannelConfig, NotifyConfig
from thumbwheel.notify.types import Notice

SECONDS = 20.0
"""In which the mail server has to answer each time."""


def send_mail(
    channel: ChannelConfig,
    notice: Notice,
    link: str,
    password: str | None,
    config: NotifyConfig,
    name: str,
) -> None:
    """Send a notice to all addresses of the channel. Raises DeliveryError unless the mail server
    accepts it for all of them."""
    what = f"channel {name!r}"
    message = mail(channel, notice, link)
    try:
        with _connected(channel, config) as server:
            if channel.tls == "starttls":
                server.starttls(context=ssl.create_default_context())
            if channel.user is not None:
                server.login(channel.user, password or "")
            refused = server.send_message(message)
    except RefusedAddress as error:
        fix = f"If that is meant, add '{channel.host}:{channel.port}' to notify.private in "
        raise DeliveryError(what, str(error), f"{fix}thumbwheel.yaml") from None
    except (smtplib.SMTPException, OSError, ValueError) as error:
        why = f"the mail server does not take it ({type(error).__name__})"
        fix = "Check host, port, tls, user and secret of the channel"
        raise DeliveryError(what, why, fix) from None
    if refused:
        why = f"the mail server refuses {len(refused)} of {len(channel.to)} addresses"
        raise DeliveryError(what, why, "Check the addresses in `to`")


def mail(channel: ChannelConfig, notice: Notice, link: str) -> EmailMessage:
    """Return the message. Its subject is the title on one line, since a header holds no more; the
    title is text, so an encoded word in it is not decoded."""
    message = EmailMessage()
    message["From"] = channel.sender
    message["To"] = ", ".join(channel.to)
    printable = "".join(sign if sign.isprintable() else " " for sign in notice.title)
    message["Subject"] = " ".join(printable.split()).replace("=?", "= ?")
    message["Date"] = format_datetime(notice.occurred_at)
    message["Auto-Submitted"] = "auto-generated"
    message.set_content(f"{notice.text}\n\n{link}\n")
    return message


def _connected(channel: ChannelConfig, config: NotifyConfig) -> smtplib.SMTP:
    """Connect to a checked address of the host, under the host's name, and return the
    connection."""
    host, port = str(channel.host), channel.port
    shown_host = f"[{host}]" if ":" in host else host
    url = f"smtp://{shown_host}:{port}"
    addresses = allowed_addresses(url, is_listed(url, config.private))

    def connected_socket(timeout: float) -> socket.socket:
        return socket.create_connection((addresses[0], port), timeout)

    class CheckedSmtp(smtplib.SMTP):
        def _get_socket(self, host: str, port: int, timeout: float) -> socket.socket:
            return connected_socket(timeout)

    class CheckedSmtpOverTls(smtplib.SMTP_SSL):
        def _get_socket(self, host: str, port: int, timeout: float) -> Any:
            return self.context.wrap_socket(connected_socket(timeout), server_hostname=host)

    if channel.tls == "tls":
        context = ssl.create_default_context()
        return CheckedSmtpOverTls(host, port, timeout=SECONDS, context=context)
    return CheckedSmtp(host, port, timeout=SECONDS)

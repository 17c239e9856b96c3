"""Receivers of notices on this machine, by HTTP and by SMTP, which keep all that they get."""

from __future__ import annotations

import base64
import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from email import message_from_bytes
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass
class HttpReceiver:
    """Answers each post with the next of `statuses`, and with 204 once none is left."""

    url: str = ""
    statuses: list[int] = field(default_factory=list)
    received: list[tuple[dict[str, str], bytes]] = field(default_factory=list)
    """(headers in lower case, body) of each post."""


@contextmanager
def http_receiver() -> Iterator[HttpReceiver]:
    """A receiver that listens on a free port."""
    receiver = HttpReceiver()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            body = self.rfile.read(int(self.headers["content-length"]))
            headers = {name.lower(): value for name, value in self.headers.items()}
            receiver.received.append((headers, body))
            status = receiver.statuses.pop(0) if receiver.statuses else 204
            self.send_response(status)
            if status in (301, 302):
                self.send_header("location", f"{receiver.url}/elsewhere")
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        receiver.url = f"http://127.0.0.1:{server.server_port}"
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield receiver
        server.shutdown()


@dataclass
class MailServer:
    """Takes mail for everybody but those in `refused`."""

    port: int = 0
    password: str | None = None
    """What has to be presented before any mail; None where nobody logs in."""
    refused: tuple[str, ...] = ()
    letters: list[tuple[list[str], Message]] = field(default_factory=list)
    """(recipients, message) of each mail."""


class MailSession(socketserver.StreamRequestHandler):
    """One connection of a client (RFC 5321, with AUTH PLAIN and without STARTTLS)."""

    def handle(self) -> None:
        """Answer each line."""
        mail = self.server.mail  # type: ignore[attr-defined]
        self.mail: MailServer = mail
        self.may_send = mail.password is None
        self.recipients: list[str] = []
        self.answer("220 mail.example ESMTP")
        commands = {"EHLO": self.greet, "AUTH": self.log_in, "MAIL": self.begin, "RCPT": self.name}
        for line in self.rfile:
            verb, _, rest = line.decode().strip().partition(" ")
            if verb.upper() == "QUIT":
                self.answer("221 bye")
                return
            if verb.upper() == "DATA":
                self.take()
            else:
                commands.get(verb.upper(), self.agree)(rest)

    def answer(self, line: str) -> None:
        """Send one line."""
        self.wfile.write(f"{line}\r\n".encode())

    def agree(self, _: str) -> None:
        """Take any other command."""
        self.answer("250 ok")

    def greet(self, _: str) -> None:
        """Say what the server can do."""
        self.answer("250-mail.example")
        self.answer("250 AUTH PLAIN")

    def log_in(self, rest: str) -> None:
        """Compare the password."""
        presented = base64.b64decode(rest.split()[1]).decode().split("\0")[2]
        self.may_send = presented == self.mail.password
        self.answer("235 welcome" if self.may_send else "535 no")

    def begin(self, _: str) -> None:
        """Begin a mail."""
        self.answer("250 ok" if self.may_send else "530 log in first")

    def name(self, rest: str) -> None:
        """Take a recipient."""
        address = rest.partition("<")[2].rstrip(">")
        if address in self.mail.refused:
            self.answer("550 nobody of that name")
            return
        self.recipients.append(address)
        self.answer("250 ok")

    def take(self) -> None:
        """Take the message."""
        self.answer("354 go on")
        lines = []
        for line in self.rfile:
            if line == b".\r\n":
                break
            lines.append(line[1:] if line.startswith(b".") else line)
        self.mail.letters.append((self.recipients, message_from_bytes(b"".join(lines))))
        self.answer("250 taken")


@contextmanager
def mail_server(password: str | None = None, refused: tuple[str, ...] = ()) -> Iterator[MailServer]:
    """A mail server on a free port."""
    mail = MailServer(password=password, refused=refused)
    with socketserver.ThreadingTCPServer(("127.0.0.1", 0), MailSession) as server:
        server.mail = mail  # type: ignore[attr-defined]
        mail.port = server.server_address[1]
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield mail
        server.shutdown()

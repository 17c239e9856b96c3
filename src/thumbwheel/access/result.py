"""What a command shows, as the answer to a request: JSON for programs, and for the command line of
another machine the tables and lines that are seen beside the home."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from fastapi import Request, Response

from thumbwheel.access.protocol import EXIT, PAGE
from thumbwheel.core import present

JSON = "application/json"
LINES = "application/x-ndjson"
"""Of a command that prints a JSON value a line."""


@dataclass(frozen=True)
class Result:
    """What a command showed, and its exit code."""

    shown: present.Shown
    code: int

    def json(self) -> bytes:
        """What `--json` prints."""
        if self.shown.lines:
            lines = [present.json_text(line, indent=None) for line in self.shown.lines]
            return "".join(f"{line}\n" for line in lines).encode("utf-8", "replace")
        return present.json_text(self.shown.value, indent=None).encode("utf-8", "replace")

    def page(self) -> bytes:
        """What a terminal shows, as JSON."""
        parts = [present.part_to_json(part) for part in self.shown.parts]
        content = {"parts": parts, "exit": self.code}
        return present.json_text(content, indent=None).encode("utf-8", "replace")

    def response(self, *, as_page: bool, status: int = 200) -> Response:
        """The answer to a request."""
        headers = {} if self.code == 0 else {EXIT: str(self.code)}
        if as_page:
            return Response(self.page(), status, headers, PAGE)
        return Response(self.json(), status, headers, LINES if self.shown.lines else JSON)


def wants_page(request: Request) -> bool:
    """Whether the tables and lines are asked for."""
    return PAGE in request.headers.get("accept", "")


def answer(
    request: Request, show: Callable[[bool], None], *, status: int = 200, code: int = 0
) -> Response:
    """The response with what `show` shows; it is told whether JSON is asked for."""
    as_page = wants_page(request)
    with present.captured() as shown:
        show(not as_page)
        shown.parts = [*shown.parts]
    return Result(shown, code).response(as_page=as_page, status=status)

"""A password that somebody types, beside the home or for a server."""

from __future__ import annotations

import sys

import typer


def typed_password(name: str) -> str:
    """Return this user's password: typed twice, unseen, or the first line of standard input."""
    if sys.stdin.isatty():
        prompt = f"password of {name}"
        return str(typer.prompt(prompt, hide_input=True, confirmation_prompt=True, err=True))
    return sys.stdin.readline().rstrip("\r\n")

"""The `secrets` group: keys of other people's servers, by name."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from thumbwheel.core import present

secrets = typer.Typer(help="Keys of other people's servers, by name; a value is never printed.")
Name = Annotated[str, typer.Argument(help="Its name, for example OPENAI_API_KEY.")]
AsJson = Annotated[bool, typer.Option("--json", help="The answer as JSON on standard output.")]


@secrets.command("set")
def set_(ctx: typer.Context, name: Name, json: AsJson = False) -> None:
    """Store a secret, read from standard input, in a file of the home that only you can read.

    Example: printf '%s' "$OPENAI_API_KEY" | thumbwheel secrets set OPENAI_API_KEY
    """
    from thumbwheel.core.secret_store import SecretStore, check_name

    check_name(name)
    if sys.stdin.isatty():
        value = typer.prompt(f"value of {name}", hide_input=True, err=True)
    else:
        value = sys.stdin.read()
    with ctx.obj() as ws:
        SecretStore(ws.home.secrets).set(name, value)
    present.message({"name": name}, f"{name} is stored", json=json)


@secrets.command("list")
def list_(ctx: typer.Context, json: AsJson = False) -> None:
    """The names of the stored secrets, and which versions need them."""
    from thumbwheel.core.secret_store import SecretStore
    from thumbwheel.models import versions

    with ctx.obj() as ws:
        store = SecretStore(ws.home.secrets)
        needed = versions.secret_names(ws)
        names = sorted({*store.names(), *needed})
        rows = []
        for name in names:
            stored = name in store.names()
            rows.append(
                {
                    "name": name,
                    "stored": stored,
                    "in_environment": not stored and store.get(name) is not None,
                    "needed_by": needed.get(name, []),
                }
            )
    columns = {
        "name": lambda row: row["name"],
        "value": _origin,
        "needed by": lambda row: ", ".join(row["needed_by"]),
    }
    present.records(rows, "secrets", columns, json=json)


def _origin(row: dict[str, object]) -> str:
    if row["stored"]:
        return "stored"
    return "from the environment" if row["in_environment"] else "MISSING"


@secrets.command("remove")
def remove(ctx: typer.Context, name: Name, json: AsJson = False) -> None:
    """Delete a stored secret."""
    from thumbwheel.core.secret_store import SecretStore

    with ctx.obj() as ws:
        SecretStore(ws.home.secrets).remove(name)
    present.message({"name": name}, f"{name} is removed", json=json)

"""The `secrets` group: keys of other people's servers, by name."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Annotated

import typer

from thumbwheel.core import present
from thumbwheel.deploy.types import ListedSecret, NamedSecret

secrets = typer.Typer(help="Keys of other people's servers, by name; a value is never printed.")
Name = Annotated[str, typer.Argument(help="Its name, for example OPENAI_API_KEY.")]
OfAgent = Annotated[
    str | None,
    typer.Option(help="An agent whose owners may name it [default: the home's owner alone]."),
]


@secrets.command("set")
def set_(ctx: typer.Context, name: Name, of_agent: OfAgent = None) -> present.Answer[NamedSecret]:
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
        SecretStore(ws.home.secrets, of_agent).set(name, value)
    return present.message(NamedSecret(name, of_agent), f"{name} is stored")


@secrets.command("list")
def list_(
    ctx: typer.Context,
    of_agent: Annotated[str | None, typer.Option(help="Only those of this agent.")] = None,
) -> present.Answer[Sequence[ListedSecret]]:
    """List the names of the stored secrets, and which versions need them."""
    from thumbwheel.core.secret_store import stored_secrets
    from thumbwheel.models import versions

    with ctx.obj() as ws:
        stored = stored_secrets(ws.home.secrets)
        needed = versions.secret_names(ws)
    listed = sorted({*stored, *needed}, key=lambda secret: (secret.name, secret.agent or ""))
    if of_agent is not None:
        listed = [secret for secret in listed if secret.agent == of_agent]
    rows = [
        ListedSecret(secret.name, secret.agent, secret in stored, needed.get(secret, []))
        for secret in listed
    ]
    columns = {
        "name": lambda row: row.name,
        "of": lambda row: row.agent or "the home",
        "value": lambda row: "stored" if row.stored else "MISSING",
        "needed by": lambda row: ", ".join(row.needed_by),
    }
    empty = "no secrets; store one: thumbwheel secrets set NAME"
    return present.records(rows, "secrets", columns, empty=empty)


@secrets.command("remove")
def remove(ctx: typer.Context, name: Name, of_agent: OfAgent = None) -> present.Answer[NamedSecret]:
    """Delete a stored secret."""
    from thumbwheel.core.secret_store import SecretStore

    with ctx.obj() as ws:
        SecretStore(ws.home.secrets, of_agent).remove(name)
    return present.message(NamedSecret(name, of_agent), f"{name} is removed")

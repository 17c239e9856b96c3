"""The commands `cluster init` and `cluster join`: one home on many hosts."""

from __future__ import annotations

from typing import Any

import typer

from thumbwheel.core import present

cluster = typer.Typer()


@cluster.callback()
def _group() -> None:
    """Run one home on many hosts, which share its database."""


@cluster.command()
def init(ctx: typer.Context) -> present.Answer[Any]:
    """Make a cluster of this home, once: its keys and secrets move into its database, sealed.

    The rows have to be in PostgreSQL (THUMBWHEEL_DATABASE). THUMBWHEEL_CLUSTER_KEY is the key that
    seals them: 32 random bytes in base64, the same on every host. Stop `thumbwheel serve` first.

    Example: thumbwheel cluster init
    """
    from thumbwheel.core.config import Home
    from thumbwheel.db.cluster import initialise

    home = Home.at(ctx.obj.home)
    cluster_of_home = initialise(home, ctx.obj.settings().environment)
    _record(ctx, "cluster.init")
    text = "Its keys are in the database now. On each other host run: thumbwheel cluster join"
    return present.message(cluster_of_home, f"{cluster_of_home.id}: {text}")


@cluster.command()
def join(ctx: typer.Context) -> present.Answer[Any]:
    """Make this host one of the cluster whose database THUMBWHEEL_DATABASE names.

    It needs a new folder (--home), THUMBWHEEL_CLUSTER_KEY, and the version of Thumbwheel that
    the other hosts run.

    Example: thumbwheel --home /srv/thumbwheel cluster join
    """
    from thumbwheel.core.config import Home
    from thumbwheel.db.cluster import join as run

    home = Home.at(ctx.obj.home)
    joined = run(home, ctx.obj.settings().environment)
    _record(ctx, "cluster.join")
    return present.message(joined, f"This host is one of {joined.id}. Start: thumbwheel serve")


def _record(ctx: typer.Context, action: str) -> None:
    """Open the home, which proves that its keys can be read here, and write the audit log."""
    from thumbwheel.access import audit
    from thumbwheel.access.audit import Act
    from thumbwheel.jobs.host import Host

    with ctx.obj() as ws:
        audit.record(ws, Act(ctx.obj.actor, action, content={"host": Host.of(ws.home).id}))

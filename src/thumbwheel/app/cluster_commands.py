"""The commands of `cluster`: one home on many hosts."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, Any

import typer

from thumbwheel.core import present
from thumbwheel.report.types import ClusterHost

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

    It needs a new folder (--home), THUMBWHEEL_CLUSTER_KEY, the version of Thumbwheel that the
    other hosts run, and the right time.

    Example: thumbwheel --home /srv/thumbwheel cluster join
    """
    from thumbwheel.core.config import Home
    from thumbwheel.db.cluster import join as run

    home = Home.at(ctx.obj.home)
    joined = run(home, ctx.obj.settings().environment)
    _record(ctx, "cluster.join")
    return present.message(joined, f"This host is one of {joined.id}. Start: thumbwheel serve")


@cluster.command()
def hosts(ctx: typer.Context) -> present.Answer[Sequence[ClusterHost]]:
    """List the hosts of this home, and the erasures whose files wait for them.

    Example: thumbwheel cluster hosts
    """
    from thumbwheel.erasure.pending_erasures import cluster_hosts

    with ctx.obj() as ws:
        rows = cluster_hosts(ws)
    columns: dict[str, Callable[[ClusterHost], object]] = {
        "folder": lambda row: row.folder,
        "host": lambda row: f"{row.name} (this one)" if row.is_this else row.name,
        "address": lambda row: row.address,
        "thumbwheel": lambda row: row.version,
        "erasures that wait": lambda row: ", ".join(row.erasures),
    }
    empty = "this home has one host; see: thumbwheel cluster init"
    return present.records(rows, "hosts of this home", columns, empty=empty)


@cluster.command()
def forget(
    ctx: typer.Context,
    folder: Annotated[str, typer.Argument(help="The folder of the host, as listed.")],
) -> present.Answer[ClusterHost]:
    """Remove a host that will not come back: erasures wait for it no longer. Its disk may still
    hold what was erased.

    Example: thumbwheel cluster forget 3f0c9a7be1d24856
    """
    from thumbwheel.erasure.pending_erasures import forget_host

    with ctx.obj() as ws:
        forgotten = forget_host(ws, folder)
    text = f"host {forgotten.name} is none of this home any more; destroy its disk"
    return present.message(forgotten, text)


def _record(ctx: typer.Context, action: str) -> None:
    """Open the home, which proves that its keys can be read here, and write the audit log."""
    from thumbwheel.access import audit
    from thumbwheel.access.audit import Act
    from thumbwheel.jobs.host import Host

    with ctx.obj() as ws:
        audit.record(ws, Act(ctx.obj.actor, action, content={"host": Host.of(ws.home).id}))

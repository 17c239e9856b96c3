"""The `notify` group: where notices go, a test of a channel, and what people are told now."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated

import typer

from thumbwheel.core import present
from thumbwheel.notify.types import AskedDelivery, Delivered, ListedChannel, Notice

notify = typer.Typer(help="Webhooks, Slack and e-mail for what waits for a person.")


@notify.command("channels")
def channels(ctx: typer.Context) -> present.Answer[Sequence[ListedChannel]]:
    """List the channels of thumbwheel.yaml, and which notices go there.

    Example: thumbwheel notify channels
    """
    from thumbwheel.core.secret_store import SecretStore
    from thumbwheel.notify.settings import NotifyConfig

    with ctx.obj() as ws:
        config = ws.settings(NotifyConfig, "notify")
        stored = SecretStore(ws.home.secrets).names()
    rows = []
    for name, channel in config.channels.items():
        named = [secret for secret in (channel.secret, channel.url_secret) if secret]
        missing = [secret for secret in named if secret not in stored]
        rows.append(
            ListedChannel(name, channel.kind, list(channel.kinds), list(channel.agents), missing)
        )
    return present.records(
        rows,
        "channels",
        {
            "name": lambda row: row.name,
            "kind": lambda row: row.kind,
            "notices": lambda row: ", ".join(row.kinds),
            "agents": lambda row: ", ".join(row.agents) or "all",
            "secrets": lambda row: (
                f"MISSING: {', '.join(row.missing_secrets)}" if row.missing_secrets else "stored"
            ),
        },
        empty="no channels: set one up under notify.channels in thumbwheel.yaml",
    )


@notify.command("test")
def test(
    ctx: typer.Context,
    channel: Annotated[str, typer.Argument(help="A channel of thumbwheel.yaml.")],
) -> present.Answer[Delivered]:
    """Send a notice that says that the channel works.

    Example: thumbwheel notify test ops
    """
    from thumbwheel.core.clock import utc_now
    from thumbwheel.notify.delivery import deliver, notice_of_test

    with ctx.obj() as ws:
        notice = notice_of_test(utc_now())
        deliver(ws, channel, notice)
    return present.message(Delivered(channel, notice.key), f"{channel} took a test notice")


@notify.command("list")
def list_(
    ctx: typer.Context,
    agent: Annotated[str, typer.Option(help="Whose notices are meant.")],
) -> present.Answer[Sequence[Notice]]:
    """List what people are told now, newest first, whether or not a channel is set up.

    Example: thumbwheel notify list --agent support
    """
    from thumbwheel.core.clock import utc_now
    from thumbwheel.models.versions import require_agent
    from thumbwheel.notify.notices import notices

    with ctx.obj() as ws:
        current = notices(ws, require_agent(ws, agent), {}, utc_now())
    return present.records(
        current,
        f"notices of {agent}",
        {
            "since": lambda notice: f"{notice.occurred_at:%Y-%m-%d %H:%M}",
            "kind": lambda notice: notice.kind,
            "title": lambda notice: notice.title,
            "text": lambda notice: notice.text,
        },
        empty=f"nothing waits for a person; how the loop is doing: thumbwheel loop status "
        f"--agent {agent}",
    )


@notify.command("send")
def send(ctx: typer.Context) -> present.Answer[Sequence[AskedDelivery]]:
    """Ask for all deliveries that are due, as the server does by itself every quarter of a minute.

    Workers of the home send them: thumbwheel serve, or thumbwheel worker.

    Example: thumbwheel notify send
    """
    from thumbwheel.core.clock import utc_now
    from thumbwheel.notify.delivery import dispatch

    with ctx.obj() as ws:
        jobs = dispatch(ws, {}, utc_now())
    asked = [
        AskedDelivery(job.id, job.spec["channel"], job.spec["notice"]["title"]) for job in jobs
    ]
    return present.records(
        asked,
        "deliveries",
        {
            "job": lambda delivery: delivery.job,
            "channel": lambda delivery: delivery.channel,
            "notice": lambda delivery: delivery.title,
        },
        empty="nothing is due; the channels: thumbwheel notify channels",
    )

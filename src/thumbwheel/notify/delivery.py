"""Sends notices: each once to each channel, as a job that is tried again where the receiver refuses
it."""

from __future__ import annotations

from collections.abc import Collection
from datetime import UTC, datetime, timedelta

from thumbwheel.core.errors import DeliveryError, NotFound
from thumbwheel.core.plugins import nearest
from thumbwheel.core.secret_store import SecretStore
from thumbwheel.db.workspace import Workspace
from thumbwheel.jobs import queue
from thumbwheel.jobs.types import Job, JobState
from thumbwheel.loop.attention import Down
from thumbwheel.models.versions import agents
from thumbwheel.notify.mail import send_mail
from thumbwheel.notify.notices import JOB_KIND, notices
from thumbwheel.notify.settings import ChannelConfig, NotifyConfig
from thumbwheel.notify.types import Notice
from thumbwheel.notify.webhook import post_slack, post_webhook

MOST_ATTEMPTS = 6
"""At one notice for one channel."""
FIRST_PAUSE = timedelta(seconds=30)
"""Before the second attempt; each further pause is twice as long."""
NEWEST = 200
"""Failed deliveries that are looked at."""


def channel_of(config: NotifyConfig, name: str) -> ChannelConfig:
    """Return the channel with this name. Raises NotFound."""
    if name not in config.channels:
        names = sorted(config.channels)
        raise NotFound(
            f"channel {name[:63]!r}",
            "thumbwheel.yaml has no such channel",
            f"Known: {', '.join(names) or 'none'}.{nearest(name, names)}",
            outside="See: thumbwheel notify channels",
        )
    return config.channels[name]


def deliver(ws: Workspace, name: str, notice: Notice) -> None:
    """Send a notice to a channel. Raises NotFound for a missing channel or secret, DeliveryError if
    the receiver does not accept it."""
    config = ws.settings(NotifyConfig, "notify")
    channel = channel_of(config, name)
    secrets = SecretStore(ws.home.secrets)
    link = f"{(config.url or '').rstrip('/')}{notice.path}"
    if channel.kind == "email":
        password = secrets.require(channel.secret) if channel.secret else None
        send_mail(channel, notice, link, password, config, name)
        return
    url = channel.url or _secret_url(secrets, str(channel.url_secret), name)
    if channel.kind == "slack":
        post_slack(url, notice, link, config, name)
    else:
        post_webhook(url, notice, link, secrets.require(str(channel.secret)), config, name)


def _secret_url(secrets: SecretStore, secret: str, name: str) -> str:
    url = secrets.require(secret)
    if not url.startswith(("http://", "https://")):
        raise DeliveryError(
            f"channel {name!r}",
            f"secret {secret!r} contains no http or https address",
            f"Store it again: thumbwheel secrets set {secret}",
        )
    return url


def notice_of_test(now: datetime) -> Notice:
    """Return a notice which says that a channel works."""
    title, text = "Thumbwheel: a test", "Notices of this home arrive here."
    return Notice(f"test {now.isoformat()}", "decision", "", title, text, "/", now)


def dispatch(ws: Workspace, down: Down, now: datetime) -> list[Job]:
    """Enqueue a job for each notice and channel that has none yet, and retry failed ones that have
    waited long enough. Return the jobs."""
    config = ws.settings(NotifyConfig, "notify")
    if not config.channels:
        return []
    asked = []
    for agent in agents(ws):
        for notice in notices(ws, agent, down, now):
            for name in _channels_for(config, notice):
                key = f"{JOB_KIND} {name} {agent.slug} {notice.key}"
                if queue.job_of_key(ws, key) is None:
                    spec = {"channel": name, "notice": notice.to_json()}
                    asked.append(queue.enqueue(ws, JOB_KIND, spec, agent=agent.slug, key=key))
    return asked + _tried_again(ws, config.channels, now)


def _channels_for(config: NotifyConfig, notice: Notice) -> list[str]:
    names = []
    for name, channel in config.channels.items():
        if notice.kind in channel.kinds and (not channel.agents or notice.agent in channel.agents):
            names.append(name)
    return names


def _tried_again(ws: Workspace, channels: Collection[str], now: datetime) -> list[Job]:
    failed, _ = queue.jobs(ws, states=[JobState.FAILED], kind=JOB_KIND, limit=NEWEST)
    again = []
    for job in failed:
        ended_at = job.ended_at or job.recorded_at
        pause = FIRST_PAUSE * 2 ** max(0, job.attempts - 1)
        is_due = ended_at + pause <= now.astimezone(UTC)
        if job.attempts < MOST_ATTEMPTS and is_due and job.spec["channel"] in channels:
            again.append(queue.retry(ws, job.id))
    return again

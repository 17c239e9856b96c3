"""A server that somebody else runs: OpenAI, Anthropic, an Ollama or vLLM elsewhere, anything that
speaks their API. Nothing is started or converted, and the model cannot be compared with weights.

The server's key is named, never stored here: its value is read when it is needed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx2

from thumbwheel.core import log
from thumbwheel.core.addresses import RefusedAddress, allowed_addresses
from thumbwheel.core.errors import ModelError, ThumbwheelError
from thumbwheel.core.secret_store import FOLDER, SecretStore
from thumbwheel.deploy.types import ENDPOINT, Endpoint, Health, RemoteModel, TargetConfig

PATIENCE = 5.0
"""Seconds in which a list of models has to come."""
WITHOUT_LIST = (404, 405, 501)
"""Statuses of servers that answer, and list no models."""
ANTHROPIC_VERSION = "2023-06-01"


class RemoteConfig(TargetConfig):
    """What is about a server beyond its URL, model and price (thumbwheel models endpoint)."""

    private: bool = False
    """Whether a host name may lead to a loopback or private address; an address or localhost in the
    URL says so itself"""


class Remote:
    """The contract is in target.py."""

    Config = RemoteConfig
    kinds = (ENDPOINT,)
    named = False

    def check(self, settings: RemoteConfig) -> None:
        """What runs there is asked by `apply`, which knows the URL."""

    def apply(self, package: RemoteModel, settings: RemoteConfig) -> Endpoint:
        """Ask the server for its models with the key; nothing is changed there."""
        details = {
            "place": str(package.state_folder),
            "secret": package.secret,
            "family": package.family,
            "private": settings.private,
        }
        endpoint = Endpoint(package.url, package.model, details)
        names = _model_names(endpoint, settings.wait)
        if names and not _lists(names, package.model):
            log.say(
                f"note: {package.url} does not list {package.model!r}; it lists "
                f"{', '.join(sorted(names)[:8])}"
            )
        return endpoint

    def health(self, endpoint: Endpoint) -> Health:
        """Whether the server answers and takes the key."""
        try:
            _model_names(endpoint, PATIENCE)
        except ThumbwheelError as error:
            return Health(False, f"{error.what}: {error.why}")
        return Health(True)

    def remove(self, endpoint: Endpoint) -> None:
        """The server is somebody else's."""

    def point(self, alias: str, endpoint: Endpoint) -> None:
        """The gateway resolves aliases."""

    def secret(self, endpoint: Endpoint) -> str | None:
        """The value of the named secret; raises NotFound where there is none of that name."""
        name = endpoint.details.get("secret")
        if name is None:
            return None
        home = Path(endpoint.details["place"]).parents[1]
        return SecretStore(home / FOLDER).require(str(name))


REMOTE = Remote()


def _lists(names: Iterable[str], model: str) -> bool:
    """Whether `model` is among the names; Ollama takes names without the tag `latest`."""
    return model in names or f"{model}:latest" in names


def _model_names(endpoint: Endpoint, wait: float) -> set[str]:
    """The models that the server lists, empty where it lists none; raises ModelError where it does
    not answer or refuses the key."""
    what = f"model {endpoint.model!r} at {endpoint.url}"
    reply = _ask(endpoint, what, wait)
    if reply.status_code in WITHOUT_LIST:
        return set()
    if reply.status_code in (401, 403):
        secret = endpoint.details.get("secret")
        fix = f"Set it: thumbwheel secrets set {secret}" if secret else "Name it with --secret"
        raise ModelError(what, f"it wants another key (HTTP {reply.status_code})", fix)
    if reply.status_code >= 300:
        why = f"it answers HTTP {reply.status_code} to GET models"
        raise ModelError(what, why, "Check its URL, and whether it runs")
    return _names(reply)


def _ask(endpoint: Endpoint, what: str, wait: float) -> httpx2.Response:
    secret = REMOTE.secret(endpoint)
    headers: dict[str, str] = {}
    if endpoint.details.get("family") == "anthropic":
        headers = {"anthropic-version": ANTHROPIC_VERSION}
        if secret:
            headers["x-api-key"] = secret
    elif secret:
        headers = {"authorization": f"Bearer {secret}"}
    try:
        addresses = allowed_addresses(endpoint.url, bool(endpoint.details.get("private")))
        return _get(f"{endpoint.url}/models", addresses, headers, wait)
    except RefusedAddress as error:
        fix = "If that is meant, deploy it with --set private=true"
        raise ModelError(what, str(error), fix) from None
    except (httpx2.HTTPError, OSError) as error:
        why = f"nothing answers there ({type(error).__name__}: {error})"
        raise ModelError(what, why, "Check its URL, and whether it runs") from None


def _get(
    url: str, addresses: Sequence[str], headers: dict[str, str], wait: float
) -> httpx2.Response:
    """The reply of the first of these addresses that takes a connection, asked under the name in
    the URL; raises HTTPError. As for the calls of the gateway, no proxy is used: it would resolve
    the name anew."""
    parts = urlsplit(url)
    headers = {**headers, "host": parts.netloc.rpartition("@")[2]}
    with httpx2.Client(transport=httpx2.HTTPTransport(), timeout=wait) as client:
        for address in addresses:
            try:
                return client.get(
                    httpx2.URL(url).copy_with(host=address),
                    headers=headers,
                    extensions={"sni_hostname": parts.hostname},
                )
            except httpx2.ConnectError:
                if address == addresses[-1]:
                    raise
    raise AssertionError  # there is at least one address


def _names(reply: httpx2.Response) -> set[str]:
    try:
        content: Any = reply.json()
        return {str(entry["id"]) for entry in content["data"]}
    except (ValueError, LookupError, TypeError):
        return set()

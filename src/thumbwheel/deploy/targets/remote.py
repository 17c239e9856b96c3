"""A server that somebody else runs: OpenAI, Anthropic, an Ollama or vLLM elsewhere, anything that
speaks their API. Nothing is started or converted, and the model cannot be compared with weights.

The server's key is named, never stored here: its value is read when it is needed.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx2

from thumbwheel.capture.call_feature import CallFeature
from thumbwheel.core import log
from thumbwheel.core.addresses import RefusedAddress
from thumbwheel.core.errors import Conflict, ModelError, ThumbwheelError
from thumbwheel.core.secret_store import FOLDER, SecretStore
from thumbwheel.deploy.types import ENDPOINT, Endpoint, Health, RemoteModel, TargetConfig
from thumbwheel.llm.checked_transport import CheckedTransport

PATIENCE = 5.0
"""Seconds in which a list of models has to come."""
WITHOUT_LIST = (404, 405, 501)
"""Statuses of servers that answer, and list no models."""
ANTHROPIC_VERSION = "2023-06-01"


class RemoteTarget:
    """The contract is in target.py."""

    Config = TargetConfig
    kinds = (ENDPOINT,)
    named = False
    lacks: frozenset[CallFeature] = frozenset()

    def check(self, settings: TargetConfig) -> None:
        """Check nothing here: `apply`, which knows the URL, asks the server for its models."""

    def apply(self, package: RemoteModel, settings: TargetConfig) -> Endpoint:
        """Ask the server for its models with the key; nothing is changed there."""
        details = {
            "place": str(package.state_folder),
            "secret": package.secret,
            "secret_agent": package.secret_agent,
            "family": package.family,
            "private": package.private,
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
        """Return whether the server answers and takes the key."""
        try:
            _model_names(endpoint, PATIENCE)
        except ThumbwheelError as error:
            return Health(False, f"{error.what}: {error.why}")
        return Health(True)

    def remove(self, endpoint: Endpoint) -> None:
        """Do nothing: somebody else runs the server."""

    def point(self, alias: str, endpoint: Endpoint) -> None:
        """Do nothing: the gateway resolves aliases."""

    def secret(self, endpoint: Endpoint) -> str | None:
        """Return the value of the named secret, or None if the endpoint names none. Raises NotFound
        if there is no such secret, and Conflict if the deployment does not record its owner."""
        name = endpoint.details.get("secret")
        if name is None:
            return None
        if "secret_agent" not in endpoint.details:
            raise Conflict(
                f"secret {name!r} of {endpoint.model!r} at {endpoint.url}",
                "it was deployed before secrets had owners, so anybody may have named it",
                "Register and deploy it again: thumbwheel models endpoint, thumbwheel deploy",
            )
        home = Path(endpoint.details["place"]).parents[1]
        return SecretStore(home / FOLDER, endpoint.details["secret_agent"]).require(str(name))


REMOTE = RemoteTarget()


def _lists(names: Iterable[str], model: str) -> bool:
    """Return whether `model` is among the names; Ollama takes names without the tag `latest`."""
    return model in names or f"{model}:latest" in names


def _model_names(endpoint: Endpoint, wait: float) -> set[str]:
    """Return the models that the server lists, empty if it has no list. Raises ModelError if it
    does not answer or refuses the key."""
    what = f"model {endpoint.model!r} at {endpoint.url}"
    reply = _ask(endpoint, what, wait)
    if reply.status_code in WITHOUT_LIST:
        return set()
    if reply.status_code in (401, 403):
        secret = endpoint.details.get("secret")
        fix = f"Set it: thumbwheel secrets set {secret}" if secret else "Name it with --secret"
        raise ModelError(what, f"it needs another key (HTTP {reply.status_code})", fix)
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
    transport = CheckedTransport(private=bool(endpoint.details.get("private")))
    try:
        with httpx2.Client(transport=transport, headers=headers, timeout=wait) as client:
            return client.get(f"{endpoint.url}/models")
    except RefusedAddress as error:
        host = urlsplit(endpoint.url).netloc
        fix = f"If that is meant, add {host!r} to endpoints.private in thumbwheel.yaml"
        raise ModelError(what, str(error), fix) from None
    except (httpx2.HTTPError, OSError) as error:
        why = f"nothing answers there ({type(error).__name__}: {error})"
        raise ModelError(what, why, "Check its URL, and whether it runs") from None


def _names(reply: httpx2.Response) -> set[str]:
    try:
        content: Any = reply.json()
        return {str(entry["id"]) for entry in content["data"]}
    except (ValueError, LookupError, TypeError):
        return set()

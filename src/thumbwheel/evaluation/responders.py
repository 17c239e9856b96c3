"""The two responders of an evaluation: how candidate and incumbent are served.

Forms: `hf:FOLDER` (a merged model, in this process), `gguf:FILE`, an endpoint as `URL#MODEL`,
`recorded` (what the app's model answered). Without a form, a version is its base with its adapter
in this process, or the endpoint that it was registered as.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from thumbwheel.core.errors import InputError
from thumbwheel.db.workspace import Workspace
from thumbwheel.evaluation.local_model import LocalModel, exported
from thumbwheel.evaluation.recorded import recorded
from thumbwheel.evaluation.responder import Responder
from thumbwheel.evaluation.served import endpoint, gguf
from thumbwheel.evaluation.types import EvaluationConfig, HeldOutCase
from thumbwheel.models import versions
from thumbwheel.models.settings import may_be_private
from thumbwheel.models.types import Agent, ModelVersion

RECORDED = "recorded"
FORMS = f"hf:FOLDER, gguf:FILE, http://HOST:PORT/v1#MODEL, {RECORDED}"


@dataclass
class Responders:
    """A candidate and the incumbent that it is compared with. Close them."""

    ws: Workspace
    config: EvaluationConfig
    cases: Sequence[HeldOutCase]
    candidate: ModelVersion
    incumbent: ModelVersion
    form: str | None = None
    against_form: str | None = None

    @cached_property
    def local_model(self) -> LocalModel:
        """The candidate's base, with the adapters of the versions that run in this process."""
        adapted = []
        if self.candidate.adapter and not self.form:
            adapted.append(self.candidate)
        if self.incumbent.adapter and not self.against_form:
            adapted.append(self.incumbent)
        return LocalModel(self.ws, base_of(self.ws, self.candidate), adapted, self.config)

    @cached_property
    def after(self) -> Responder:
        """The candidate."""
        return self._responder(self.candidate, self.form)

    @cached_property
    def before(self) -> Responder:
        """The incumbent."""
        return self._responder(self.incumbent, self.against_form)

    @property
    def both(self) -> tuple[Responder, Responder]:
        """Before and after."""
        return self.before, self.after

    @cached_property
    def base(self) -> Responder:
        """The base of the candidate, in this process."""
        return self.local_model.responder(self.local_model.base)

    @property
    def served(self) -> list[Responder]:
        """Those that do not run on `local_model`."""
        served = []
        if self.against_form or self.incumbent.endpoint:
            served.append(self.before)
        if self.form or self.candidate.endpoint:
            served.append(self.after)
        return served

    def close(self) -> None:
        """Stop the servers and close the connections."""
        for responder in self.served:
            responder.close()

    def _responder(self, version: ModelVersion, form: str | None) -> Responder:
        parallel = self.config.parallel
        if form is None and version.endpoint is None:
            return self.local_model.responder(version)
        if form is None and version.endpoint is not None:
            url, model = version.endpoint["url"], version.endpoint["model"]
            api_key = version.secret_of_endpoint(self.ws.home.secrets)
            private = may_be_private(self.ws, url)
            return endpoint(version.name, url, model, api_key, parallel, version.id, private)

        name = f"{version.name} as {form}"
        kind, _, path = str(form).partition(":")
        if form == RECORDED:
            return recorded(self.ws, version, name, self.cases)
        if kind == "hf" and path:
            return exported(self.ws, version, name, Path(path), self.config)
        if kind == "gguf" and path:
            return gguf(name, Path(path))
        url, _, model = str(form).partition("#")
        if "@" in url or "?" in url:
            without_secret = url.partition("@")[2] or url.partition("?")[0]
            raise InputError(
                f"{without_secret!r} as a form",
                "a name or key in a URL would be stored",
                f"Set {self.config.key_variable}",
            )
        if kind in ("http", "https") and model:
            api_key = os.environ.get(self.config.key_variable)
            return endpoint(name, url, model, api_key, parallel, version.id)
        raise InputError(
            f"{form!r} as a form of {version.name!r}",
            "there is no such form",
            f"Use one of: {FORMS}",
        )


def base_of(ws: Workspace, version: ModelVersion) -> ModelVersion:
    """Return the version without an adapter that `version` was trained over. Raises InputError if
    it is not among the versions."""
    for earlier in versions.versions(ws, Agent.named(version.agent)):
        is_base = earlier.adapter is None and earlier.endpoint is None
        if is_base and earlier.base_fingerprint == version.base_fingerprint:
            return earlier
    raise InputError(
        f"version {version.name!r} of agent {version.agent!r}",
        "its base is not among the versions",
        "Train a new one",
    )

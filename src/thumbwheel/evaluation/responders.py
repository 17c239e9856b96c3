"""Which sides an evaluation compares: each version as it is served by default, or in the form that
was named for it.

Forms: `hf:FOLDER` (a merged model, in this process), `gguf:FILE`, an endpoint as `URL#MODEL`,
`recorded` (what the app's own model answered). Without one a version is its base with its adapter
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
from thumbwheel.evaluation.types import Case, EvaluationConfig
from thumbwheel.models import versions
from thumbwheel.models.types import ModelVersion

RECORDED = "recorded"
FORMS = f"hf:FOLDER, gguf:FILE, http://HOST:PORT/v1#MODEL, {RECORDED}"


@dataclass
class Sides:
    """A candidate and what it is compared with. Close them."""

    ws: Workspace
    config: EvaluationConfig
    cases: Sequence[Case]
    candidate: ModelVersion
    incumbent: ModelVersion
    form: str | None = None
    against_form: str | None = None

    @cached_property
    def own(self) -> LocalModel:
        """The candidate's base, with the adapters of those that run in this process."""
        here = [
            one
            for one, form in ((self.candidate, self.form), (self.incumbent, self.against_form))
            if one.adapter and not form
        ]
        return LocalModel(self.ws, base_of(self.ws, self.candidate), here, self.config)

    @cached_property
    def after(self) -> Responder:
        """The candidate."""
        return self._side(self.candidate, self.form)

    @cached_property
    def before(self) -> Responder:
        """What it is compared with."""
        return self._side(self.incumbent, self.against_form)

    @property
    def both(self) -> tuple[Responder, Responder]:
        """Before and after."""
        return self.before, self.after

    @cached_property
    def base(self) -> Responder:
        """The base of the candidate, in this process."""
        return self.own.side(self.own.base)

    @property
    def served(self) -> list[Responder]:
        """Those that are not the base with an adapter or none."""
        given = (
            (self.incumbent, self.against_form, "before"),
            (self.candidate, self.form, "after"),
        )
        return [getattr(self, name) for one, form, name in given if form or one.endpoint]

    def close(self) -> None:
        """End what was started."""
        for side in self.served:
            side.close()

    def _side(self, version: ModelVersion, form: str | None) -> Responder:
        key, parallel = os.environ.get(self.config.key_variable), self.config.parallel
        if form is None and version.endpoint is None:
            return self.own.side(version)
        if form is None and version.endpoint is not None:
            return endpoint(
                version.name,
                version.endpoint["url"],
                version.endpoint["model"],
                key,
                parallel,
                version.id,
            )
        name = f"{version.name} as {form}"
        kind, _, rest = str(form).partition(":")
        if form == RECORDED:
            return recorded(self.ws, version, name, self.cases)
        if kind == "hf" and rest:
            return exported(self.ws, version, name, Path(rest), self.config)
        if kind == "gguf" and rest:
            return gguf(name, Path(rest))
        url, _, model = str(form).partition("#")
        if "@" in url or "?" in url:
            shown = url.partition("@")[2] or url.partition("?")[0]
            raise InputError(
                f"{shown!r} as a form",
                "a name or key in a URL would be stored",
                f"Set {self.config.key_variable}",
            )
        if kind in ("http", "https") and model:
            return endpoint(name, url, model, key, parallel, version.id)
        raise InputError(
            f"{form!r} as a form of {version.name!r}",
            "there is no such form",
            f"Use one of: {FORMS}",
        )


def base_of(ws: Workspace, version: ModelVersion) -> ModelVersion:
    """The version without adapter over which `version` was made."""
    bases = (
        one
        for one in versions.versions(ws, version.agent)
        if one.adapter is None and one.endpoint is None
    )
    found = next((one for one in bases if one.base_fingerprint == version.base_fingerprint), None)
    if found is None:
        raise InputError(
            f"version {version.name!r} of agent {version.agent!r}",
            "its base is not among the versions",
            "Train a new one",
        )
    return found

"""Prepares a version for a target: reuses an export that is there and undamaged, or writes a new
one."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from thumbwheel.core import ids
from thumbwheel.core.errors import Conflict, StorageError
from thumbwheel.db.hosts import HostConfig
from thumbwheel.db.workspace import Workspace
from thumbwheel.deploy.store import FOLDER
from thumbwheel.deploy.types import ENDPOINT, Package, RemoteModel
from thumbwheel.engine.base_check import locate_unchanged
from thumbwheel.evaluation.approval import require_approval
from thumbwheel.evaluation.responders import base_of
from thumbwheel.evaluation.rows import training_prompts
from thumbwheel.export.formats import FORMATS
from thumbwheel.export.package import export, exports, precision, served_by_its_file
from thumbwheel.export.types import GGUF_ADAPTER, GGUF_MODEL, HF_MODEL, Export, ModelKind
from thumbwheel.llm.port import HOST
from thumbwheel.models import versions
from thumbwheel.models.base import gguf_file, locate, require_training
from thumbwheel.models.gguf.base import file_hash
from thumbwheel.models.settings import may_be_private
from thumbwheel.models.template_settings import AS_IT_IS, template_settings
from thumbwheel.models.types import ModelVersion, VersionState, require_untainted

EVERY_IPV4, EVERY_IPV6 = "0.0.0.0", "::"
"""All addresses of this host."""
PROMPTS = 48
"""Prompts of the agent that the canary looks at."""


@dataclass(frozen=True)
class DeploymentPlan:
    """What a deployment would do."""

    version: str
    target: str
    format: str
    kind: ModelKind
    quant: str | None
    export: Export | None
    """The export that is reused; None where `folder` will be written."""
    folder: Path | None
    """None for a version that somebody else serves."""
    misfits: tuple[str, ...] = ()
    """What last week's calls used and the target cannot do."""


def plan(
    ws: Workspace,
    model_version: ModelVersion,
    target: str,
    kinds: Sequence[ModelKind],
    quant: str | None,
) -> DeploymentPlan:
    """Choose the format in which `model_version` is deployed: the first one, in the order of
    `kinds`, which the target takes, that the version can have."""
    if model_version.endpoint is not None:
        return _remote_plan(model_version, target, kinds)
    if ENDPOINT in kinds:
        raise Conflict(
            f"{model_version.label} on target {target!r}",
            "that target is for models on other servers, and this version's weights are here",
            "Deploy it on another target, or register the address where it is served: thumbwheel "
            "models endpoint URL",
        )
    if not _is_lora(ws, model_version):
        kinds = [kind for kind in kinds if kind.base is None]
    elif GGUF_ADAPTER in kinds and quant is None and served_by_its_file(ws, model_version):
        # over the very file that people run already
        kinds = [GGUF_ADAPTER, *(kind for kind in kinds if kind != GGUF_ADAPTER)]
    format = _format_with(kinds, quantised=quant is not None)
    if format is None:
        raise Conflict(
            f"version {model_version.name} on target {target!r}",
            "it accepts no quantised files" if quant else "it accepts LoRA adapters only",
            "Choose another target, or leave --quant out",
        )
    kind = FORMATS.get(format).kind
    if _is_plain_base(model_version, format):
        base_folder = locate(model_version.base)[1]
        return DeploymentPlan(model_version.name, target, format, kind, None, None, base_folder)

    quant = precision(format, quant)
    usable = _usable_export(ws, model_version, format, quant)
    if usable is not None:
        return DeploymentPlan(
            model_version.name, target, usable.format, kind, quant, usable, usable.path
        )
    parts = [model_version.agent, model_version.name, format, quant]
    folder = ws.home.path / "exports" / "-".join(part for part in parts if part)
    return DeploymentPlan(model_version.name, target, format, kind, quant, None, folder)


def _usable_export(
    ws: Workspace, model_version: ModelVersion, format: str, quant: str | None
) -> Export | None:
    """Return the newest export that can be deployed in place of a new one in `format`: of that
    format, else of another one that writes the same kind of files in the same precision; None if
    there is none."""
    kind = FORMATS.get(format).kind
    same_format: Export | None = None
    same_kind: Export | None = None
    for earlier in exports(ws, model_version):  # oldest first
        # The package of a third party's format may be gone.
        if earlier.format not in FORMATS.names() or FORMATS.get(earlier.format).kind != kind:
            continue
        is_complete = earlier.host is None and earlier.path.is_dir() and bool(earlier.files)
        if earlier.quant != quant or not earlier.deployable or not is_complete:
            continue
        if earlier.format == format:
            same_format = earlier
        else:
            same_kind = earlier
    return same_format or same_kind


def _remote_plan(
    model_version: ModelVersion, target: str, kinds: Sequence[ModelKind]
) -> DeploymentPlan:
    if ENDPOINT not in kinds:
        url = (model_version.endpoint or {}).get("url")
        raise Conflict(
            f"{model_version.label} on target {target!r}",
            f"it is served elsewhere ({url}), and its weights are not here",
            "Deploy it with --target remote, or a version that was trained here",
        )
    return DeploymentPlan(model_version.name, target, ENDPOINT.name, ENDPOINT, None, None, None)


def require_servable(ws: Workspace, model_version: ModelVersion, alias: str | None) -> None:
    """Raise Conflict for a version that may not be served, under `alias` or at all. Its state is
    read anew: an erasure may have tainted it since."""
    model_version = versions.by_id(ws, model_version.id)
    what = model_version.label
    if alias is not None:
        versions.check_alias_name(alias)
    if alias is not None:
        require_approval(ws, model_version, alias)
        return
    require_untainted(model_version.tainted, what, "Deploy another version")
    if model_version.state in (VersionState.REJECTED, VersionState.RETIRED):
        raise Conflict(what, f"it is {model_version.state}", "Deploy another version")


def _format_with(kinds: Sequence[ModelKind], quantised: bool) -> str | None:
    """Return the first format that has one of `kinds`; if `quantised`, the first of those with a
    choice of precision. None if no format fits."""
    for kind in kinds:
        for name in FORMATS.names():
            format = FORMATS.get(name)
            if format.kind == kind and (format.quants or not quantised):
                return name
    return None


def package(
    ws: Workspace,
    model_version: ModelVersion,
    deploy_plan: DeploymentPlan,
    accept: str | None = None,
) -> Package | RemoteModel:
    """Return the verified files of `deploy_plan`, exported if they do not exist yet; for a version
    that somebody else serves, its address.

    Raises ModelError for a base that has changed, and for an export that is not the trained model
    and that nobody accepted; StorageError for damaged files and a full disk.
    """
    if deploy_plan.folder is None:
        return _remote_model(ws, model_version, deploy_plan.target)
    return files(ws, model_version, deploy_plan, accept)


def _remote_model(ws: Workspace, model_version: ModelVersion, target: str) -> RemoteModel:
    endpoint = model_version.endpoint or {}
    return RemoteModel(
        agent=model_version.agent,
        version=model_version.name,
        name=f"{model_version.agent}-{model_version.name}",
        url=endpoint["url"],
        model=endpoint["model"],
        family=endpoint["family"],
        secret=endpoint["secret"],
        secret_agent=model_version.secret_agent,
        private=may_be_private(ws, endpoint["url"]),
        state_folder=ws.home.path / FOLDER / target,
    )


def files(
    ws: Workspace,
    model_version: ModelVersion,
    deploy_plan: DeploymentPlan,
    accept: str | None = None,
) -> Package:
    """Return the package of a version whose weights are here; raises as `package` does."""
    destination = deploy_plan.folder
    assert destination is not None  # noqa: S101 - narrows the type: `plan` gave it a folder
    require_training()
    _, base = locate_unchanged(ws, model_version)
    kind = deploy_plan.kind
    plain_base = _is_plain_base(model_version, deploy_plan.format)
    if plain_base:
        folder = base
        hashes: dict[str, str] = {}
        export_id: str | None = None
        stops: tuple[str, ...] = ()
    else:
        finished = deploy_plan.export or export(
            ws,
            model_version,
            deploy_plan.format,
            destination,
            deploy_plan.quant,
            accept,
        )
        _verify(finished)
        folder, export_id, stops = finished.path, finished.id, finished.stops
        hashes = {name: str(file["sha256"]) for name, file in finished.files.items()}
    if kind.base is None:
        package_base = folder
    elif kind.base == HF_MODEL:
        package_base = base
    else:
        package_base = _exported_base(ws, model_version, deploy_plan, kind.base, accept)
    over_hf_base = kind.base == HF_MODEL
    return Package(
        agent=model_version.agent,
        version=model_version.name,
        name=f"{model_version.agent}-{model_version.name}",
        kind=kind,
        folder=folder,
        files=hashes,
        base=package_base,
        base_fingerprint=model_version.base_fingerprint if plain_base or over_hf_base else None,
        tokenizer=folder if (folder / "tokenizer_config.json").is_file() else base,
        state_folder=ws.home.path / FOLDER / deploy_plan.target,
        export_id=export_id,
        stops=stops,
        system=common_system(prompts(ws, model_version)),
        # an export has its settings in the template that it was saved with
        template=template_settings(ws, model_version.agent) if plain_base else AS_IT_IS,
        bind=_bind(ws),
    )


def _bind(ws: Workspace) -> str:
    """Return the address on which model servers listen: loopback, unless the other hosts of the
    home reach this one."""
    address = ws.settings(HostConfig, "host").address
    if address is None or not ws.is_shared:
        return HOST
    return EVERY_IPV6 if address.startswith("[") else EVERY_IPV4


def _is_plain_base(model_version: ModelVersion, format: str) -> bool:
    """Return whether the folder of the base is deployed directly, without any export."""
    return model_version.adapter is None and format == "merged"


def _exported_base(
    ws: Workspace,
    model_version: ModelVersion,
    deploy_plan: DeploymentPlan,
    kind: ModelKind,
    accept: str | None,
) -> Path:
    """Return the version's base in the kind that its adapter needs: a GGUF file, or a folder. A
    base that came from a GGUF file is that file. Raises StorageError if that file's hash is not the
    recorded one."""
    if kind == GGUF_MODEL and (file := gguf_file(model_version.base)) is not None:
        actual = file_hash(file.path)
        if file.sha256 not in (None, actual):
            raise StorageError(
                f"GGUF file {str(file.path)!r}",
                f"its hash is sha256:{actual}, which is not the one in its name",
                "Get the model again",
            )
        return file.path
    base = base_of(ws, model_version)
    base_plan = plan(ws, base, deploy_plan.target, [kind], deploy_plan.quant)
    base_package = files(ws, base, base_plan, accept)
    return base_package.model if kind == GGUF_MODEL else base_package.folder


def _is_lora(ws: Workspace, model_version: ModelVersion) -> bool:
    folder = versions.adapter_folder(ws, model_version)
    if folder is None:
        return False
    config = json.loads((folder / "adapter_config.json").read_text(encoding="utf-8"))
    return bool(config.get("peft_type") == "LORA")


def _verify(finished: Export) -> None:
    """Raise StorageError if a file is not the one that was exported."""
    for name, file in finished.files.items():
        path = finished.path / name
        try:
            actual = ids.file_hash(path)
        except OSError as error:
            actual = error.strerror or str(error)
        if actual != file["sha256"]:
            raise StorageError(
                f"file {str(path)!r} of the {finished.format} export of {finished.version}",
                f"it is not the one that was exported ({actual[:40]})",
                f"Remove the folder {str(finished.path)!r}: the version is then exported again",
            )


def prompts(ws: Workspace, model_version: ModelVersion) -> list[list[dict[str, Any]]]:
    """Return up to `PROMPTS` different prompts of the agent."""
    unique = {
        json.dumps(prompt, sort_keys=True): prompt
        for prompt in islice(training_prompts(ws, model_version), 4 * PROMPTS)
    }
    return list(unique.values())[:PROMPTS]


def common_system(conversations: Sequence[list[dict[str, Any]]]) -> str | None:
    """Return the system message with which all conversations begin; None if they differ."""
    texts: set[str | None] = set()
    for messages in conversations:
        has_system = bool(messages) and messages[0].get("role") == "system"
        texts.add(str(messages[0].get("content")) if has_system else None)
    return texts.pop() if len(texts) == 1 else None

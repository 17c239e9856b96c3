"""Exports a version as a folder that other programs load. The folder is complete and checked, or it
does not exist.

It is written beside its destination under another name, compared with the trained model, hashed,
synced, and then renamed.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from thumbwheel.core import ids, log
from thumbwheel.core.config import Home
from thumbwheel.core.errors import Conflict, InputError, ModelError, NotFound, StorageError
from thumbwheel.core.files import unwritable
from thumbwheel.core.plugins import nearest
from thumbwheel.db.workspace import Workspace
from thumbwheel.db.write_locks import of_agent
from thumbwheel.engine.base_check import locate_unchanged, remembered_fingerprint
from thumbwheel.engine.load import adapter_base, quiet_transformers
from thumbwheel.evaluation.rows import training_prompts
from thumbwheel.export import gguf_file, parity, score, store
from thumbwheel.export.format import Format
from thumbwheel.export.formats import FORMATS
from thumbwheel.export.formats.lora_gguf import why_not
from thumbwheel.export.types import (
    GGUF_ADAPTER,
    GGUF_MODEL,
    Acceptance,
    Export,
    ExportSource,
    Messages,
    Parity,
)
from thumbwheel.export.unfinished import scratch
from thumbwheel.models import base, versions
from thumbwheel.models.base import require_training
from thumbwheel.models.template_settings import template_settings
from thumbwheel.models.types import ModelVersion, VersionState, require_untainted
from thumbwheel.rewards import ledger
from thumbwheel.rewards.component import resolve_paths
from thumbwheel.sdk.disk import sync

MANIFEST = "thumbwheel.json"
README = "README.md"
CASES = 24
"""Held-out cases that an export of smaller precision answers."""
AGENT_PROMPTS = 8
"""Prompts of the agent that parity is checked on besides the built-in ones."""


def export(
    ws: Workspace,
    version: ModelVersion,
    format: str = "merged",
    to: Path | None = None,
    quant: str | None = None,
    accept: str | None = None,
    cases: int = CASES,
) -> Export:
    """Write `version` as `format` into the new folder `to` (default
    ./AGENT-VERSION-FORMAT, with the precision behind it).

    Raises Conflict for a folder that is not empty and for a tainted version, ModelError where the
    base has changed or the result is not the trained model, StorageError for a full disk; none of
    them leaves a folder. `accept` ("name: reason") keeps a result that is not the trained model,
    and is recorded with it. A smaller precision also answers up to `cases` held-out cases of the
    agent.
    """
    job = _begin(ws, version, format, cases)
    acceptance = Acceptance.read(accept) if accept else None
    return _export(job, precision(format, quant), to, acceptance)


def ladder(
    ws: Workspace,
    version: ModelVersion,
    format: str,
    quants: Sequence[str],
    to: Path | None = None,
    cases: int = CASES,
) -> Iterator[Export]:
    """Yield one export per precision, below the folder `to`. An export that failed parity is
    recorded without files, so that all can be compared. Raises InputError for no precisions.

    The model is merged and converted once, and the trained model computed once.
    """
    if not quants:
        raise InputError(
            f"--ladder of format {format!r}",
            "it keeps the precision of the base, and has no other",
            "Leave --ladder out",
        )
    precisions = dict.fromkeys(precision(format, quant) for quant in quants)
    job = _begin(ws, version, format, cases)
    parent = _make_parent(to)
    destinations = {quant: parent / default_name(version, format, quant) for quant in precisions}
    for destination in destinations.values():
        _require_free(destination)
    with scratch(ws.home, parent, "thumbwheel-ladder-") as shared:
        shared_job = replace(job, source=replace(job.source, scratch=shared))
        for quant, destination in destinations.items():
            yield _export(shared_job, quant, destination, None, keep_failed=True)


@dataclass(frozen=True)
class _Export:
    """What to export. The trained model is computed when it is first needed."""

    ws: Workspace
    version: ModelVersion
    format_name: str
    format: Format
    source: ExportSource
    cases: int
    computed: list[parity.ParityReference] = field(default_factory=list)

    def probes(self) -> list[Messages]:
        """Return the prompts for the comparison: a fixed set for every export, and some of the
        agent's."""
        agent_prompts = islice(training_prompts(self.ws, self.version), AGENT_PROMPTS)
        return [*parity.PROBES, *agent_prompts]

    def reference(self) -> parity.ParityReference:
        """Compute the trained model on the probes, once per job."""
        if not self.computed:
            probes = self.probes()
            # precisions are compared by the cases that they solve
            most_cases = self.cases if self.format.quants else 0
            cases = score.cases_of(self.ws, self.version, most_cases)
            settings = ledger.settings(self.ws, self.version.agent).checkers
            checkers = resolve_paths(self.ws, self.version.agent, settings)
            reference = parity.reference(self.source, probes, cases)
            self.computed.append(replace(reference, checkers=checkers))
        return self.computed[0]


def _begin(ws: Workspace, version: ModelVersion, format: str, cases: int) -> _Export:
    writer = FORMATS.get(format)
    version = versions.by_id(ws, version.id)  # an erasure may have tainted it since
    _require_exportable(version)
    return _Export(ws, version, format, writer, _source(ws, version), cases)


def default_format(ws: Workspace, version: ModelVersion) -> str:
    """Return the format if none is requested: for a base that came from a GGUF file the adapter for
    that file, if llama.cpp can serve it; else one ordinary model folder."""
    return "lora_gguf" if served_by_its_file(ws, version) else "merged"


def served_by_its_file(ws: Workspace, version: ModelVersion) -> bool:
    """Return whether a version can be served as an adapter over the GGUF file of its base."""
    if version.endpoint or version.adapter is None or base.gguf_file(version.base) is None:
        return False
    folder = versions.adapter_folder(ws, version)
    assert folder is not None  # noqa: S101 - narrows the type: the version has an adapter
    config = json.loads((folder / "adapter_config.json").read_text(encoding="utf-8"))
    return why_not(config) is None


def precision(format: str, requested: str | None) -> str | None:
    """Return `requested` in the format's spelling, or the format's default for None. Raises
    NotFound if the format has no such precision."""
    writer = FORMATS.get(format)
    if requested is None:
        return writer.default()
    quant = requested.upper()
    if quant in writer.quants:
        return quant
    what = f"--quant {requested!r} of format {format!r}"
    if not writer.quants:
        raise NotFound(what, "it keeps the precision of the base", "Leave --quant out")
    raise NotFound(
        what,
        "there is no such precision in it",
        f"Known: {', '.join(writer.quants)}.{nearest(quant, writer.quants)}",
    )


def default_name(version: ModelVersion, format: str, quant: str | None) -> str:
    """Return the folder name of an export if none is requested."""
    parts = (version.agent, version.name, format, quant)
    return "-".join(part for part in parts if part)


def _make_parent(to: Path | None) -> Path:
    folder = (to or Path()).expanduser().resolve()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _unusable_folder(folder, error) from None
    return folder


def _export(
    job: _Export,
    quant: str | None,
    to: Path | None,
    acceptance: Acceptance | None,
    keep_failed: bool = False,
) -> Export:
    """Write, compare and record one export. If it fails parity and was not accepted, raise
    ModelError, or record it without files with `keep_failed`."""
    destination = (
        (to or Path(default_name(job.version, job.format_name, quant))).expanduser().resolve()
    )
    _require_free(destination)
    model_version, writer = job.version, job.format
    source = replace(job.source, quant=quant)
    title = _title(job.format_name, quant)
    if writer.kind in (GGUF_MODEL, GGUF_ADAPTER) and acceptance is None and not keep_failed:
        gguf_file.check_tokens(source, writer.kind, job.probes())
    with _staging(job.ws.home, destination) as folder:
        with quiet_transformers():
            writer.write(source, folder)
        log.say(f"comparing the {title} export with the trained model")
        reference = job.reference()
        result = parity.compare_folder(reference, writer, folder)
        usable = not result.failures or acceptance is not None
        if not (usable or keep_failed):
            raise _parity_error(model_version, title, result)
        accepted = None
        if result.failures and acceptance:
            accepted = f"{acceptance.name}: {acceptance.reason}"
        finished = Export(
            id=ids.new("exp"),
            agent=model_version.agent,
            version=model_version.name,
            format=job.format_name,
            path=destination,
            files={},
            parity=result,
            quant=quant,
            accepted=accepted,
            stops=reference.stops,
        )
        if usable:
            # The manifest has the hashes of all other files, and the rename makes them visible.
            readme = _readme(model_version, finished, writer, source.name)
            (folder / README).write_text(readme, encoding="utf-8")
            finished = replace(finished, files=_hashes(folder))
            manifest = json.dumps(_manifest(model_version, finished, source.name), indent=2)
            (folder / MANIFEST).write_text(manifest + "\n", encoding="utf-8")
            for path in [*folder.rglob("*"), folder]:
                sync(path)
            folder.rename(destination)
    try:
        job.ws.db.write(
            lambda connection: store.add(connection, job.ws.home, model_version, finished),
            of_agent(model_version.agent_id),
        )
    except BaseException:
        if usable:
            shutil.rmtree(destination, ignore_errors=True)
        raise
    return finished


def _title(format: str, quant: str | None) -> str:
    return f"{format} {quant}" if quant else format


def _source(ws: Workspace, model_version: ModelVersion) -> ExportSource:
    require_training()
    name, folder = locate_unchanged(ws, model_version)
    adapter = versions.adapter_folder(ws, model_version)
    if adapter is not None:
        _check_base(adapter, model_version, folder, ws.home.cache)
    template = template_settings(ws, model_version.agent)
    file = base.gguf_file(name)
    return ExportSource(
        str(folder), adapter, name, template=template, gguf=None if file is None else file.path
    )


def _check_base(adapter: Path, model_version: ModelVersion, folder: Path, cache: Path) -> None:
    """Raise ModelError for an adapter whose own metadata names another base. A folder that was
    moved is recognised by its weights."""
    named_base = adapter_base(adapter)
    if named_base in ("", model_version.base, str(folder)):
        return
    named_folder = Path(named_base).expanduser()
    if named_folder.is_dir():
        named_weights = remembered_fingerprint(named_folder, cache)
        differs = named_weights != remembered_fingerprint(folder, cache)
    else:
        differs = not named_folder.is_absolute()
    if differs:
        raise ModelError(
            f"the adapter of version {model_version.name!r}",
            f"its own metadata names the base {named_base!r}, the version {model_version.base!r}",
            "An adapter works only on its own base: train on that base, or export the "
            "version that belongs to it",
        )


def forget_paths(connection: sa.Connection) -> int:
    """Forget where the files of all exports are, in rows that come from elsewhere; return how many
    exports there are."""
    return store.forget_paths(connection)


def exports(ws: Workspace, version: ModelVersion) -> list[Export]:
    """Return the recorded exports of a version, oldest first."""
    with ws.db.read() as connection:
        return store.of_version(connection, ws.home, version.id)


def _require_exportable(model_version: ModelVersion) -> None:
    if model_version.endpoint:
        raise ModelError(
            model_version.label,
            "it is served elsewhere, and its weights are not here",
            "Export a version that was trained here",
        )
    fix = "Retrain without that data and export the new version"
    require_untainted(model_version.tainted, model_version.label, fix)
    if model_version.state is not VersionState.APPROVED:
        log.say(
            f"note: {model_version.name} is {model_version.state}; the gate has not approved it, "
            "and the export says so"
        )


def _require_free(destination: Path) -> None:
    """Raise Conflict unless `destination` does not exist or is an empty folder."""
    if destination.exists() and (not destination.is_dir() or any(destination.iterdir())):
        raise Conflict(
            f"folder {str(destination)!r}",
            "it already contains files",
            "Name a new folder with --to, or remove that one",
        )


@contextmanager
def _staging(home: Home, destination: Path) -> Iterator[Path]:
    """Create a folder beside `destination`, removed afterwards unless it was renamed."""
    with ExitStack() as stack:
        try:
            folder = stack.enter_context(
                scratch(home, destination.parent, f".{destination.name}-", ".unfinished")
            )
        except OSError as error:
            raise _unusable_folder(destination, error) from None
        with _storage_errors(destination):
            yield folder


@contextmanager
def _storage_errors(destination: Path) -> Iterator[None]:
    """Convert the errors that a full disk raises inside to StorageError."""
    try:
        yield
    except OSError as error:
        raise _unwritable(destination, error) from error
    except Exception as error:
        # The writer of safetensors raises its SafetensorError for a full disk.
        if type(error).__module__.startswith("safetensors"):
            raise _unwritable(destination, error) from error
        raise


def _unusable_folder(folder: Path, error: OSError) -> InputError:
    return InputError(
        f"folder {str(folder)!r}",
        error.strerror or str(error),
        "Name a folder that can be written with --to",
    )


def _unwritable(destination: Path, error: Exception) -> StorageError:
    fix = "Free some space, then run the same command again"
    return unwritable(f"export to {str(destination)!r}", error, fix)


def _parity_error(model_version: ModelVersion, title: str, result: Parity) -> ModelError:
    if title == "adapter":
        advice = "Report it with the base's name"
    elif not (result.same_prompts and result.same_text):
        # no precision changes that
        advice = "Export it with --format adapter or merged,"
    else:
        advice = "Export it with --format adapter, or in a finer precision,"
    return ModelError(
        f"the {title} export of {model_version.name} of agent {model_version.agent!r}",
        f"after loading it differs from the trained model: {'; '.join(result.failures)}",
        f'The export was deleted. {advice} or accept it by name: --accept "NAME: REASON"',
    )


def _hashes(folder: Path) -> dict[str, dict[str, Any]]:
    files = {}
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        name = path.relative_to(folder).as_posix()
        files[name] = {"sha256": ids.file_hash(path), "size": path.stat().st_size}
    return files


def manifest_of(folder: Path) -> dict[str, Any]:
    """Return the content of thumbwheel.json in an exported folder; empty if it cannot be read."""
    try:
        return dict(json.loads((folder / MANIFEST).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return {}


def _manifest(model_version: ModelVersion, finished: Export, base_name: str) -> dict[str, Any]:
    """Return the content of thumbwheel.json: the lineage of this folder, and the hash of every
    other file in it."""
    return {
        "export": finished.id,
        "agent": finished.agent,
        "version": finished.version,
        "version_id": model_version.id,
        "state": model_version.state,
        "basis": model_version.basis,
        "format": finished.format,
        "quant": finished.quant,
        "stops": list(finished.stops),
        "base": base_name,
        "base_fingerprint": model_version.base_fingerprint,
        "adapter": model_version.adapter,
        "run_id": model_version.run_id,
        "parity": asdict(finished.parity),
        "accepted": finished.accepted,
        "files": finished.files,
    }


def _readme(model_version: ModelVersion, finished: Export, writer: Format, base_name: str) -> str:
    result = finished.parity
    usage = writer.usage(str(finished.path))
    language = "sh" if usage.startswith("$ ") else "python"
    title = _title(finished.format, finished.quant)
    basis = f" on {model_version.basis}" if model_version.basis else ""
    text = (
        "---\n"
        f"base_model: {json.dumps(base_name)}\n"
        f"library_name: {writer.library}\n"
        "pipeline_tag: text-generation\n"
        "---\n\n"
        f"# {model_version.agent} {model_version.name} ({title})\n\n"
        f"State when exported: {model_version.state}{basis}. "
        f"Written by Thumbwheel; `{MANIFEST}` has the lineage and the hash of every file.\n\n"
        f"```{language}\n{usage.replace('$ ', '')}```\n\n"
        f"Parity with the trained model on {result.prompts} prompts, {result.tokens} tokens "
        f"(float32 against {result.dtype}): largest logit "
        f"difference {result.max_abs_diff:.2g}, mean KL {result.mean_kl:.2g} nats, same most "
        f"likely token {100 * result.top1:.2f} %.\n"
    )
    if finished.accepted:
        text += (
            f"\nIt is not the trained model within its limits ({'; '.join(result.failures)}). "
            f"Taken by {finished.accepted}.\n"
        )
    return text

"""`export`: a version as a folder that others load; there whole and checked, or not at all.

Written beside its place under another name, compared with the trained model, hashed, synced, then
renamed.
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

from thumbwheel.core import ids, log
from thumbwheel.core.config import Home
from thumbwheel.core.errors import Conflict, InputError, ModelError, NotFound, StorageError
from thumbwheel.core.plugins import nearest
from thumbwheel.db.workspace import Workspace
from thumbwheel.engine.base_check import locate_unchanged
from thumbwheel.engine.load import adapter_base, base_fingerprint, quiet_transformers
from thumbwheel.evaluation.rows import training_prompts
from thumbwheel.export import parity, score, store
from thumbwheel.export.format import Format
from thumbwheel.export.formats import FORMATS
from thumbwheel.export.types import Acceptance, Export, Parity, Source
from thumbwheel.export.unfinished import scratch
from thumbwheel.models import versions
from thumbwheel.models.base import require_training
from thumbwheel.models.types import ModelVersion, State
from thumbwheel.rewards import ledger
from thumbwheel.rewards.component import resolve_paths
from thumbwheel.sdk.disk import sync

MANIFEST = "thumbwheel.json"
README = "README.md"
CASES = 24
"""Held-out cases that a model of smaller precision answers."""
OWN = 8
"""Prompts of the agent that parity is checked on besides the built-in ones."""


def export(
    ws: Workspace,
    agent: str,
    version: str,
    format: str = "merged",
    to: Path | None = None,
    quant: str | None = None,
    accept: str | None = None,
    cases: int = CASES,
) -> Export:
    """Write `version` of `agent` as `format` into the new folder `to` (default
    ./AGENT-VERSION-FORMAT, with the precision behind it).

    Raises Conflict for a folder that holds something and for a tainted version, ModelError where
    the base has changed or the result is not the trained model, StorageError for a full disk; none
    of them leaves a folder. `accept` ("name: reason") keeps a result that is not the trained model,
    and is recorded with it. A smaller precision also answers up to `cases` held-out cases of the
    agent.
    """
    work = _begin(ws, agent, version, format, cases)
    return _export(work, precision(format, quant), to, Acceptance.read(accept) if accept else None)


def ladder(
    ws: Workspace,
    agent: str,
    version: str,
    format: str,
    quants: Sequence[str],
    to: Path | None = None,
    cases: int = CASES,
) -> Iterator[Export]:
    """One export a precision, below the folder `to`; what failed parity is recorded without files,
    so that all can be compared.

    The model is merged and converted once, and the trained model computed once.
    """
    if not quants:
        raise InputError(
            f"--ladder of format {format!r}",
            "it keeps the precision of the base, and has no other",
            "Leave --ladder out",
        )
    named = dict.fromkeys(precision(format, one) for one in quants)
    work, folder = _begin(ws, agent, version, format, cases), _parent(to)
    places = {one: folder / _name(work, one) for one in named}
    for place in places.values():
        _check_target(place)
    with scratch(ws.home, folder, "thumbwheel-ladder-") as shared:
        for one, place in places.items():
            yield _export(
                replace(work, source=replace(work.source, scratch=shared)),
                one,
                place,
                None,
                keep_failed=True,
            )


@dataclass(frozen=True)
class _Work:
    ws: Workspace
    version: ModelVersion
    format: str
    form: Format
    source: Source
    cases: int
    known: list[parity.Reference] = field(default_factory=list)

    def reference(self) -> parity.Reference:
        if not self.known:
            probes = [*parity.PROBES, *islice(training_prompts(self.ws, self.version), OWN)]
            cases = score.cases_of(self.ws, self.version, self.cases if self.form.quants else 0)
            checkers = resolve_paths(
                self.ws, self.version.agent, ledger.settings(self.ws, self.version.agent).checkers
            )
            self.known.append(
                replace(parity.reference(self.source, probes, cases), checkers=checkers)
            )
        return self.known[0]


def _begin(ws: Workspace, agent: str, version: str, format: str, cases: int) -> _Work:
    form = FORMATS.get(format)
    one = versions.version(ws, agent, version)
    _check(one)
    return _Work(ws, one, format, form, _source(ws, one), cases)


def precision(format: str, asked: str | None) -> str | None:
    """`asked` as the format spells it, or its own choice; raises NotFound for one that it has not."""
    form = FORMATS.get(format)
    if asked is None:
        return form.default()
    if asked.upper() in form.quants:
        return asked.upper()
    why = (
        "there is no such precision in it" if form.quants else "it keeps the precision of the base"
    )
    known = (
        f"Known: {', '.join(form.quants)}.{nearest(asked.upper(), form.quants)}"
        if form.quants
        else "Leave --quant out"
    )
    raise NotFound(f"--quant {asked!r} of format {format!r}", why, known)


def _name(work: _Work, quant: str | None) -> str:
    return "-".join(
        part for part in (work.version.agent, work.version.name, work.format, quant) if part
    )


def _parent(to: Path | None) -> Path:
    folder = (to or Path()).expanduser().resolve()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _unnameable(folder, error) from None
    return folder


def _export(
    work: _Work,
    quant: str | None,
    to: Path | None,
    accept: Acceptance | None,
    keep_failed: bool = False,
) -> Export:
    target = (to or Path(_name(work, quant))).expanduser().resolve()
    _check_target(target)
    one, form, source = work.version, work.form, replace(work.source, quant=quant)
    with _staging(work.ws.home, target) as folder:
        with quiet_transformers():
            form.write(source, folder)
        log.say(f"comparing the {_what(work.format, quant)} export with the trained model")
        known = work.reference()
        found = parity.against(known, form, folder)
        kept, why = not found.failures or accept is not None, None
        if not (kept or keep_failed):
            raise _not_the_model(one, _what(work.format, quant), found)
        if found.failures and accept:
            why = f"{accept.name}: {accept.reason}"
        done = Export(
            ids.new("exp"),
            one.agent,
            one.name,
            work.format,
            target,
            {},
            found,
            quant,
            why,
            known.stops,
        )
        if kept:
            (folder / README).write_text(_readme(one, done, form, source.name), encoding="utf-8")
            done = replace(done, files=_files(folder))
            (folder / MANIFEST).write_text(
                json.dumps(_manifest(one, done, source.name), indent=2) + "\n", encoding="utf-8"
            )
            for path in [*folder.rglob("*"), folder]:
                sync(path)
            folder.rename(target)
    try:
        agent_id = versions.require_agent(work.ws, one.agent)
        work.ws.db.write(lambda connection: store.add(connection, agent_id, one.id, done))
    except BaseException:
        if kept:
            shutil.rmtree(target, ignore_errors=True)
        raise
    return done


def _what(format: str, quant: str | None) -> str:
    return f"{format} {quant}" if quant else format


def _source(ws: Workspace, one: ModelVersion) -> Source:
    require_training()
    name, folder = locate_unchanged(one, ws.home.cache)
    adapter = versions.adapter_folder(ws, one)
    if adapter is not None:
        _check_base(adapter, one, folder)
    return Source(str(folder), adapter, name)


def _check_base(adapter: Path, one: ModelVersion, folder: Path) -> None:
    """Raise ModelError for an adapter whose own metadata names another base; a folder that has
    moved is told by its weights."""
    said = adapter_base(adapter)
    if said in ("", one.base, str(folder)):
        return
    known = Path(said).expanduser()
    other = (
        base_fingerprint(known) != base_fingerprint(folder)
        if known.is_dir()
        else not known.is_absolute()
    )
    if other:
        raise ModelError(
            f"the adapter of version {one.name!r}",
            f"its own metadata names the base {said!r}, the version {one.base!r}",
            "An adapter answers rightly on its own base only: train on that base, or export the "
            "version that belongs to it",
        )


def exports(ws: Workspace, version_id: str) -> list[Export]:
    """The recorded exports of a version, oldest first."""
    with ws.db.read() as connection:
        return store.of_version(connection, version_id)


def _check(one: ModelVersion) -> None:
    if one.endpoint:
        what = f"version {one.name!r} of agent {one.agent!r}"
        raise ModelError(
            what,
            "somebody else serves it, and its weights are not here",
            "Export a version that was trained here",
        )
    if one.tainted:
        raise Conflict(
            f"version {one.name!r} of agent {one.agent!r}",
            "it is tainted: data that it was trained on was erased",
            "Retrain without that data and export the new version",
        )
    if one.state is not State.APPROVED:
        log.say(
            f"note: {one.name} is {one.state}; the gate has not approved it, and the export says so"
        )


def _check_target(target: Path) -> None:
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise Conflict(
            f"folder {str(target)!r}",
            "something is there already",
            "Name a new folder with --to, or remove that one",
        )


@contextmanager
def _staging(home: Home, target: Path) -> Iterator[Path]:
    """A folder beside `target` that is gone afterwards unless it was renamed."""
    with ExitStack() as stack:
        try:
            folder = stack.enter_context(
                scratch(home, target.parent, f".{target.name}-", ".unfinished")
            )
        except OSError as error:
            raise _unnameable(target, error) from None
        with _explained(target):
            yield folder


@contextmanager
def _explained(target: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise _unwritable(target, error) from error
    except Exception as error:
        if type(error).__module__.startswith(
            "safetensors"
        ):  # SafetensorError is how its writer says "disk full"
            raise _unwritable(target, error) from error
        raise


def _unnameable(target: Path, error: OSError) -> InputError:
    return InputError(
        f"folder {str(target)!r}",
        error.strerror or str(error),
        "Name a folder that can be written with --to",
    )


def _unwritable(target: Path, error: Exception) -> StorageError:
    why = (error.strerror if isinstance(error, OSError) else None) or str(error)
    return StorageError(
        f"export to {str(target)!r}",
        f"it cannot be written: {why}",
        "Free some space, then run the same command again",
    )


def _not_the_model(one: ModelVersion, format: str, found: Parity) -> ModelError:
    return ModelError(
        f"the {format} export of {one.name} of agent {one.agent!r}",
        f"loaded again it is not the model that was trained: {'; '.join(found.failures)}",
        "Nothing was kept. "
        + (
            "Report it with the base's name"
            if format == "adapter"
            else "Export it with --format adapter, or in a finer precision,"
        )
        + ' or take it by name: --accept "NAME: REASON"',
    )


def _files(folder: Path) -> dict[str, dict[str, Any]]:
    found = {}
    for path in sorted(path for path in folder.rglob("*") if path.is_file()):
        found[path.relative_to(folder).as_posix()] = {
            "sha256": ids.file_hash(path),
            "size": path.stat().st_size,
        }
    return found


def manifest_of(folder: Path) -> dict[str, Any]:
    """What thumbwheel.json of an exported folder says; empty where none can be read."""
    try:
        return dict(json.loads((folder / MANIFEST).read_text(encoding="utf-8")))
    except (OSError, ValueError, TypeError):
        return {}


def _manifest(one: ModelVersion, done: Export, base: str) -> dict[str, Any]:
    """thumbwheel.json: what this folder is, and the hash of every other file in it."""
    return {
        "export": done.id,
        "agent": done.agent,
        "version": done.version,
        "version_id": one.id,
        "state": one.state,
        "basis": one.basis,
        "format": done.format,
        "quant": done.quant,
        "stops": list(done.stops),
        "base": base,
        "base_fingerprint": one.base_fingerprint,
        "adapter": one.adapter,
        "run_id": one.run_id,
        "parity": asdict(done.parity),
        "accepted": done.accepted,
        "files": done.files,
    }


def _readme(one: ModelVersion, done: Export, form: Format, base: str) -> str:
    found, usage = done.parity, form.usage(str(done.path))
    fence = "sh" if usage.startswith("$ ") else "python"
    accepted = (
        f"\nIt is not the trained model within its limits ({'; '.join(found.failures)}). Taken by "
        f"{done.accepted}.\n"
    )
    return (
        f"---\nbase_model: {json.dumps(base)}\nlibrary_name: {form.library}\npipeline_tag: "
        "text-generation\n---\n\n"
        f"# {one.agent} {one.name} ({_what(done.format, done.quant)})\n\n"
        f"State when exported: {one.state}{f' on {one.basis}' if one.basis else ''}. "
        f"Written by Thumbwheel; `{MANIFEST}` has the lineage and the hash of every file.\n\n"
        f"```{fence}\n{usage.replace('$ ', '')}```\n\n"
        f"Parity with the trained model on {found.prompts} prompts, {found.tokens} tokens "
        f"(float32 against {found.dtype}): largest logit "
        f"difference {found.max_abs_diff:.2g}, mean KL {found.mean_kl:.2g} nats, same most likely "
        f"token {100 * found.top1:.2f} %.\n"
        f"{accepted if done.accepted else ''}"
    )

"""Checkpoints under Hugging Face's file names, each there whole or not at all, verified before they
are used.

    checkpoint-120/
        adapter_model.safetensors  adapter_config.json
        optimizer.pt  scheduler.pt  rng_state.pth  trainer_state.json
        loop.pt          what method and loop have to remember
        checkpoint.json  sha256 of the others

Written into a temporary folder of the same place, synced and renamed; read with
`weights_only=True`.
"""

from __future__ import annotations

import json
import os
import random
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from thumbwheel.core import ids, log
from thumbwheel.core.errors import StorageError
from thumbwheel.sdk.disk import sync
from thumbwheel.training.rundir import unwritable

if TYPE_CHECKING:
    from transformers import TrainerState

PREFIX = "checkpoint-"
MANIFEST = "checkpoint.json"
ADAPTER_FILES = ("adapter_model.safetensors", "adapter_config.json")


@dataclass
class Trained:
    """What a checkpoint holds: the PEFT model, the optimiser and the learning-rate schedule."""

    model: Any
    optimizer: Any
    scheduler: Any


class Checkpoints:
    """The checkpoints of one run; `keep` newest ones stay, and the best."""

    def __init__(self, folder: Path, keep: int) -> None:
        self._folder, self._keep = folder, keep

    def folder_of(self, step: int) -> Path:
        """Return the folder of the checkpoint after `step` steps."""
        return self._folder / f"{PREFIX}{step}"

    def steps(self) -> list[int]:
        """Return the steps that have a checkpoint, oldest first."""
        steps: list[int] = []
        for path in self._folder.glob(f"{PREFIX}*"):
            number = path.name.removeprefix(PREFIX)
            if path.is_dir() and number.isdigit():
                steps.append(int(number))
        return sorted(steps)

    def save(self, trained: Trained, state: TrainerState, loop: Mapping[str, Any]) -> Path:
        """Write the checkpoint of `state.global_step` and drop old ones. Raises StorageError, and
        then leaves the older ones alone."""
        final = self.folder_of(state.global_step)
        temporary = self._folder / f"tmp-{state.global_step}-{os.getpid()}"
        try:
            # Of a process that was killed while writing.
            for unfinished in self._folder.glob("tmp-*"):
                shutil.rmtree(unfinished, ignore_errors=True)
            temporary.mkdir(parents=True)
            _write(temporary, trained, state, loop)
            _seal(temporary)
            shutil.rmtree(final, ignore_errors=True)
            os.replace(temporary, final)
            sync(self._folder)
        except _write_errors() as error:
            shutil.rmtree(temporary, ignore_errors=True)
            raise unwritable(final, error) from error
        for step in self.steps()[: -self._keep]:
            if step != state.best_global_step:
                shutil.rmtree(self.folder_of(step), ignore_errors=True)
        return final

    def newest_sound(self) -> int | None:
        """Return the newest step whose files are undamaged, or None if there is no checkpoint;
        damaged ones are logged and skipped.

        Raises StorageError when all that exist are damaged.
        """
        steps = self.steps()
        for step in reversed(steps):
            damage = check(self.folder_of(step))
            if damage is None:
                return step
            log.say(
                f"checkpoint {self.folder_of(step).name} is damaged ({damage}); going back to "
                "the one before"
            )
        if steps:
            raise StorageError(
                f"run folder {str(self._folder.parent)!r}",
                "every checkpoint in it is damaged",
                "Start a new run",
            )
        return None

    def load(self, step: int, trained: Trained) -> tuple[TrainerState, dict[str, Any]]:
        """Restore model, optimiser, schedule and random state as they were after `step`; return
        (trainer's state, loop's)."""
        import torch
        from peft import set_peft_model_state_dict
        from safetensors.torch import load_file
        from transformers import TrainerState

        folder = self.folder_of(step)

        def read(name: str) -> Any:
            return torch.load(folder / name, map_location="cpu", weights_only=True)

        set_peft_model_state_dict(trained.model, load_file(folder / ADAPTER_FILES[0]))
        trained.optimizer.load_state_dict(read("optimizer.pt"))
        trained.scheduler.load_state_dict(read("scheduler.pt"))
        set_random_state(read("rng_state.pth"))
        state: TrainerState = TrainerState.load_from_json(str(folder / "trainer_state.json"))
        return state, read("loop.pt")

    def forget_after(self, step: int) -> None:
        """Let the checkpoints after `step` no longer count: they are damaged, and a resumed run
        reaches their steps again."""
        for later_step in self.steps():
            if later_step <= step:
                continue
            later = self.folder_of(later_step)
            try:
                # The next save removes it, where it can be removed.
                os.replace(later, later.with_name(f"tmp-{later.name}"))
            except OSError as error:
                raise unwritable(later, error) from error


def check(folder: Path) -> str | None:
    """Return what is wrong with a checkpoint's files, or None if they match their manifest."""
    try:
        expected = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        for name, sha256 in expected.items():
            if ids.file_hash(folder / name) != sha256:
                return f"{name} has changed"
    except (OSError, ValueError, AttributeError) as error:
        return str(error)
    return None


def _write(folder: Path, trained: Trained, state: TrainerState, loop: Mapping[str, Any]) -> None:
    import torch

    trained.model.save_pretrained(
        folder, save_embedding_layers=False, selected_adapters=["default"]
    )
    (folder / "README.md").unlink(missing_ok=True)
    torch.save(trained.optimizer.state_dict(), folder / "optimizer.pt")
    torch.save(trained.scheduler.state_dict(), folder / "scheduler.pt")
    torch.save(random_state(), folder / "rng_state.pth")
    torch.save(dict(loop), folder / "loop.pt")
    state.save_to_json(str(folder / "trainer_state.json"))


def _seal(folder: Path) -> None:
    hashes = {path.name: ids.file_hash(path) for path in sorted(folder.iterdir())}
    (folder / MANIFEST).write_text(json.dumps(hashes, indent=2), encoding="utf-8")
    for path in folder.iterdir():
        sync(path)
    sync(folder)


def _write_errors() -> tuple[type[Exception], ...]:
    from safetensors import SafetensorError

    # torch's archive writer reports a full disk as RuntimeError.
    return OSError, SafetensorError, RuntimeError


def random_state() -> dict[str, Any]:
    """Return the state of Python's and torch's generators, in types that a weights-only load
    accepts."""
    import torch

    version, internal, gauss = random.getstate()
    cuda = torch.cuda.get_rng_state_all() if torch.cuda.is_available() else []
    return {"python": [version, list(internal), gauss], "cpu": torch.get_rng_state(), "cuda": cuda}


def set_random_state(state: Mapping[str, Any]) -> None:
    """Restore `random_state()`."""
    import torch

    version, internal, gauss = state["python"]
    random.setstate((version, tuple(internal), gauss))
    torch.set_rng_state(state["cpu"])
    if state["cuda"] and torch.cuda.is_available():
        torch.cuda.set_rng_state_all(state["cuda"])

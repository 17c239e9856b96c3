"""Where trainings with the callback `training_callbacks:Held` hold.

The folder of the variable HOLDS has a file for each such step. The run removes it when it comes
there.
"""

from __future__ import annotations

from pathlib import Path


def hold_after(folder: Path, *steps: int) -> None:
    """Have the runs hold after these steps."""
    folder.mkdir(exist_ok=True)
    for step in steps:
        (folder / str(step)).touch()


def is_held(folder: Path, step: int) -> bool:
    """Whether a run has come to this step."""
    return not (folder / str(step)).exists()

"""No read and no job takes the square of what one key says (growth.py). A few shapes are tried in
short; `make attack` tries all of them."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.attacks.growth import SHAPES_OF_WORDS, growths

SHORT = ("nested_traces", "many_sources")


def assert_linear(name: str, rows: int, folder: Path) -> None:
    """Fail if an operation grows too fast, in two tries."""
    holes: set[str] | None = None
    for attempt in range(2):
        measured = growths(SHAPES_OF_WORDS[name], rows, folder / str(attempt))
        grown = {growth.operation: growth for growth in measured if growth.is_hole}
        holes = grown.keys() if holes is None else holes & grown.keys()
        if not holes:
            return
    raise AssertionError("\n".join(str(grown[operation]) for operation in sorted(holes or ())))


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("name", SHORT)
def test_the_work_grows_as_what_is_said_does(name: str, tmp_path: Path) -> None:
    assert_linear(name, 100, tmp_path)


@pytest.mark.slow
@pytest.mark.repeat
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("name", SHAPES_OF_WORDS)
def test_the_work_grows_as_what_is_said_does_in_every_shape(name: str, tmp_path: Path) -> None:
    assert_linear(name, 500, tmp_path)

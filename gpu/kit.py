"""Collects the packages that a GPU server without a network lacks: `make gpu-kit`, then copy the
project there, `.gpu-kit/` included, and start `gpu/run`.

The kit is wheels for one Python on Linux x86-64, in the versions and with the hashes of
constraints.txt. It leaves out what such a server has: torch, and the packages in THERE with all
that they need. `--also` adds some of those. bitsandbytes (43 MB) is a kit of its own, `--nf4`.

Run it with the interpreter of the development environment, whose installed packages say what needs
what.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterable
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

from packaging.markers import default_environment
from packaging.requirements import Requirement

from install import locked, normal_name, pip, requirements, stop

ROOT = Path(__file__).resolve().parents[1]
KIT, NF4_KIT = ROOT / ".gpu-kit", ROOT / ".gpu-kit-nf4"
PYTHON = "3.12"
THERE = (
    "torch",
    "accelerate",
    "safetensors",
    "pyarrow",
    "numpy",
    "scipy",
    "matplotlib",
    "pandas",
    "pytest",
)
"""Packages of a server on which models are trained."""
TESTS_AND_PEERS = (
    "grimp",
    "hypothesis",
    "psutil",
    "psycopg[binary]",
    "pytest",
    "pytest-timeout",
    "trl",
)
"""Besides thumbwheel itself: what the tests of the device import, and whom it is compared with."""
PLATFORMS = tuple(f"manylinux_2_{minor}_x86_64" for minor in range(34, 4, -1))
"""glibc 2.34 and everything before it, which is how pip wants to be told."""


def main() -> None:
    """Fill the folder; ends the program where constraints.txt lacks a package."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--python", default=PYTHON, help=f"version there (default: {PYTHON})")
    parser.add_argument("--also", default="", help="packages that are missing there, by commas")
    parser.add_argument("--nf4", action="store_true", help="only bitsandbytes, as a second kit")
    arguments = parser.parse_args()
    also = {normal_name(name) for name in arguments.also.split(",") if name}
    if unknown := also - set(THERE):
        stop(f"the kit cannot add {', '.join(sorted(unknown))}", f"Known: {', '.join(THERE)}")
    if arguments.nf4:
        download(NF4_KIT, ["bitsandbytes"], arguments.python)
    else:
        download(KIT, missing_packages(also, arguments.python), arguments.python)


def missing_packages(also: Iterable[str], python: str) -> list[str]:
    """Names of the packages of the kit, sorted."""
    needed = closure([*requirements(["train"]), *TESTS_AND_PEERS], python)
    there = closure([name for name in THERE if name not in also], python)
    return sorted(needed - there)


def closure(roots: Iterable[str], python: str) -> set[str]:
    """The packages of `roots` and all that these need under Python `python` on Linux."""
    environment = {key: str(value) for key, value in default_environment().items()}
    environment |= {"python_version": python, "python_full_version": f"{python}.0"}
    waiting = [Requirement(root) for root in roots]
    seen: set[tuple[str, tuple[str, ...]]] = set()
    while waiting:
        requirement = waiting.pop()
        extras = ("", *sorted(requirement.extras))
        key = (normal_name(requirement.name), extras)
        if key in seen or not _applies(requirement, ("",), environment):
            continue
        seen.add(key)
        try:
            needs = distribution(requirement.name).requires or []
        except PackageNotFoundError:
            # not needed under this Python, and looked up in constraints.txt by its name
            continue
        for text in needs:
            need = Requirement(text)
            if _applies(need, extras, environment):
                need.marker = None
                waiting.append(need)
    return {name for name, _ in seen}


def _applies(requirement: Requirement, extras: Iterable[str], environment: dict[str, str]) -> bool:
    if requirement.marker is None:
        return True
    return any(requirement.marker.evaluate(environment | {"extra": extra}) for extra in extras)


def download(folder: Path, names: Iterable[str], python: str) -> None:
    """Put the wheels of `names` into `folder`, each checked against its hash."""
    lock = locked()
    if unpinned := sorted(set(names) - set(lock)):
        stop(
            f"constraints.txt does not pin {', '.join(unpinned)}",
            "Add `name==version` for each and run: python3 lock.py",
        )
    folder.mkdir(exist_ok=True)
    for wheel in folder.glob("*.whl"):
        wheel.unlink()
    number = python.replace(".", "")
    target = ["--python-version", python, "--implementation", "cp"]
    for abi in (f"cp{number}", "abi3", "none"):
        target += ["--abi", abi]
    for platform in PLATFORMS:
        target += ["--platform", platform]
    with tempfile.NamedTemporaryFile("w", suffix=".txt") as listed:
        listed.write("".join(lock[name] for name in names))
        listed.flush()
        pip(
            Path(sys.executable),
            "download",
            "--quiet",
            "--no-deps",
            "--only-binary=:all:",
            "--require-hashes",
            "--dest",
            str(folder),
            *target,
            "--requirement",
            listed.name,
        )
    wheels = list(folder.glob("*.whl"))
    size = sum(wheel.stat().st_size for wheel in wheels) / 1e6
    sys.stdout.write(f"{len(wheels)} wheels, {size:.0f} MB, in {folder.relative_to(ROOT)}/\n")


if __name__ == "__main__":
    main()

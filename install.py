"""Makes a virtual environment with thumbwheel and the named extras: `python3 install.py .venv train
test check`.

Only the standard library is used. Versions and hashes come from constraints.txt (lock.py writes the
hashes), and pip refuses a file with another hash. torch is chosen first and by version alone,
because a machine without an NVIDIA GPU has no use for the gigabytes of CUDA packages that the
default build for Linux brings, and the CPU builds come from another index.
"""

from __future__ import annotations

import json
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
CPU_INDEX = "https://download.pytorch.org/whl/cpu"
LEAST = (3, 11)
BUILD = ("hatchling", "editables")
"""What builds the editable installation, from the same hashed list."""
OWN = {"thumbwheel-compat": HERE / "packages" / "thumbwheel-compat"}
"""Distributions of this repository that an extra names: name -> folder."""


def main(folder: str, *extras: str) -> None:
    """Create `folder` where it is missing and install into it."""
    check_python()
    venv = Path(folder)
    python = venv / "bin" / "python"
    if not python.exists():
        say(f"creating {venv} with Python {platform.python_version()}")
        subprocess.run([sys.executable, "-m", "venv", str(venv)], check=True)
    if "train" in extras:
        install_torch(python)
    say(
        f"installing thumbwheel with {', '.join(extras) or 'no extras'} (versions and hashes from "
        "constraints.txt)"
    )
    install_hashed(python, [*BUILD, *requirements(extras)])
    editable: list[str] = []
    for folder in [HERE, *own_folders(extras)]:
        editable += ["--editable", str(folder)]
    pip(python, "install", "--quiet", "--no-deps", "--no-build-isolation", *editable)


def requirements(extras: Sequence[str]) -> list[str]:
    """What pyproject.toml asks for: the base installation and the named extras, without the
    distributions of this repository; ends the program for an extra that is not there."""
    optional = of_extras(extras)
    return [
        *project()["dependencies"],
        *(requirement for requirement in optional if distribution_of(requirement) not in OWN),
    ]


def own_folders(extras: Sequence[str]) -> list[Path]:
    """The folders of the distributions of this repository that the extras name."""
    names = map(distribution_of, of_extras(extras))
    return [OWN[name] for name in names if name in OWN]


def of_extras(extras: Sequence[str]) -> list[str]:
    """What the named extras ask for; ends the program for an extra that is not there."""
    optional = project()["optional-dependencies"]
    requirements: list[str] = []
    for extra in extras:
        if extra not in optional:
            stop(f"there is no extra {extra!r}", f"Known: {', '.join(sorted(optional))}")
        requirements += optional[extra]
    return requirements


def project() -> dict[str, Any]:
    """The table [project] of pyproject.toml."""
    table: dict[str, Any] = tomllib.loads((HERE / "pyproject.toml").read_text())["project"]
    return table


def distribution_of(requirement: str) -> str:
    """The normal name of the package that a requirement names."""
    return normal_name(re.split(r"[\[<>=!~,; ]", requirement)[0])


def locked() -> dict[str, str]:
    """Normal name -> the lines of constraints.txt: pin and hashes."""
    entries = re.findall(
        r"^(?:[^\n]*\\\n)*[^\n]+\n", (HERE / "constraints.txt").read_text(), re.MULTILINE
    )
    return {normal_name(entry.split("==")[0]): entry for entry in entries}


def normal_name(name: str) -> str:
    """A package's name as the index spells it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def install_hashed(python: Path, wanted: Sequence[str]) -> None:
    """Install requirements and all that they need, each file checked against its hash.

    pip takes hashes of named packages only, not of what these need. So it first says what it would
    install, by the versions of constraints.txt, and then gets that list with hashes.
    """
    lock = locked()
    with tempfile.TemporaryDirectory() as folder:
        versions = Path(folder) / "versions.txt"
        versions.write_text(
            "".join(re.sub(r"\s*\\\n.*", "\n", entry, flags=re.DOTALL) for entry in lock.values())
        )
        report = Path(folder) / "report.json"
        pip(
            python,
            "install",
            "--quiet",
            "--dry-run",
            "--report",
            str(report),
            "--constraint",
            str(versions),
            *wanted,
        )
        packages = [
            normal_name(item["metadata"]["name"])
            for item in json.loads(report.read_text())["install"]
        ]
        if not packages:
            return
        missing = sorted(set(packages) - set(lock))
        if missing:
            stop(
                f"constraints.txt does not pin {', '.join(missing)}",
                "Add `name==version` for each and run: python3 lock.py",
            )
        hashed = Path(folder) / "hashed.txt"
        hashed.write_text("".join(lock[package] for package in packages))
        pip(
            python,
            "install",
            "--quiet",
            "--no-deps",
            "--require-hashes",
            "--requirement",
            str(hashed),
        )


def check_python() -> None:
    """Stop with the exact next step where this Python is too old or cannot make virtual
    environments."""
    if sys.version_info < LEAST:
        stop(
            f"thumbwheel needs Python 3.11 or newer; this is {platform.python_version()} "
            f"({sys.executable})",
            "Name another one, for example: make PYTHON=python3.12 test",
        )
    try:
        import ensurepip  # noqa: F401
        import venv  # noqa: F401
    except ImportError:
        version = f"{sys.version_info.major}.{sys.version_info.minor}"
        stop(
            "this Python cannot create virtual environments (ensurepip is missing)",
            f"Run: apt-get install -y python{version}-venv",
        )


def install_torch(python: Path) -> None:
    """Install the torch of constraints.txt: with CUDA beside an NVIDIA GPU, otherwise a CPU build
    where one can be had."""
    if (
        subprocess.run([python, "-c", "import torch"], capture_output=True, check=False).returncode
        == 0
    ):
        return
    version = re.search(r"^torch==(\S+)", (HERE / "constraints.txt").read_text(), re.MULTILINE)
    wanted = f"torch=={version.group(1)}" if version else "torch"
    if shutil.which("nvidia-smi") or sys.platform != "linux" or is_cpu_build(python, wanted):
        index: list[str] = []
    elif is_cpu_build(
        python, wanted, "--index-url", CPU_INDEX, "--retries", "0", "--timeout", "10"
    ):
        index = ["--index-url", CPU_INDEX]
    else:
        say(
            "no CPU build of torch can be reached: the default build comes instead, about 3 GB "
            "with CUDA (Ctrl-C to stop)"
        )
        index = []
    say(f"installing {wanted}")
    pip(python, "install", "--quiet", *index, wanted)


def is_cpu_build(python: Path, wanted: str, *options: str) -> bool:
    """Whether pip, with these options, would take a build of torch without CUDA."""
    command = [
        python,
        "-m",
        "pip",
        "install",
        "--dry-run",
        "--quiet",
        "--no-deps",
        "--ignore-installed",
        "--report",
        "-",
        *options,
        wanted,
    ]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        return False
    version = json.loads(done.stdout)["install"][0]
    needs = version["metadata"].get("requires_dist", [])
    return "+cpu" in version["metadata"]["version"] or not any(
        "nvidia" in need or "cuda" in need for need in needs
    )


def pip(python: Path, *arguments: str) -> None:
    """Run pip; on failure its own message stands and this program ends with its code."""
    code = subprocess.run(
        [python, "-m", "pip", "--disable-pip-version-check", *arguments], check=False
    ).returncode
    if code:
        sys.exit(code)


def say(text: str) -> None:
    """One line on standard error."""
    sys.stderr.write(f"install: {text}\n")


def stop(problem: str, fix: str) -> None:
    """End with what is wrong and what to do."""
    sys.exit(f"install: {problem}. {fix}")


if __name__ == "__main__":
    main(*sys.argv[1:])

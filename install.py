"""Makes a virtual environment with thumbwheel and the named extras: `python3 install.py .venv train test check`.

Only the standard library is used. Versions come from constraints.txt. torch is chosen first, because a machine without an NVIDIA
GPU has no use for the gigabytes of CUDA packages that the default build for Linux brings.
"""

from __future__ import annotations

import json
import platform
import re
import shutil
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
CPU_INDEX = "https://download.pytorch.org/whl/cpu"
LEAST = (3, 11)


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
    say(f"installing thumbwheel with {', '.join(extras) or 'no extras'} (versions from constraints.txt)")
    wanted = f"{HERE}[{','.join(extras)}]" if extras else str(HERE)
    pip(python, "install", "--quiet", "--constraint", str(HERE / "constraints.txt"), "--editable", wanted)


def check_python() -> None:
    """Stop with the exact next step where this Python is too old or cannot make virtual environments."""
    if sys.version_info < LEAST:
        stop(
            f"thumbwheel needs Python 3.11 or newer; this is {platform.python_version()} ({sys.executable})",
            "Name another one, for example: make PYTHON=python3.12 test",
        )
    try:
        import ensurepip  # noqa: F401
        import venv  # noqa: F401
    except ImportError:
        version = f"{sys.version_info.major}.{sys.version_info.minor}"
        stop("this Python cannot create virtual environments (ensurepip is missing)", f"Run: apt-get install -y python{version}-venv")


def install_torch(python: Path) -> None:
    """Install the torch of constraints.txt: with CUDA beside an NVIDIA GPU, otherwise a CPU build where one can be had."""
    if subprocess.run([python, "-c", "import torch"], capture_output=True, check=False).returncode == 0:
        return
    version = re.search(r"^torch==(\S+)", (HERE / "constraints.txt").read_text(), re.MULTILINE)
    wanted = f"torch=={version.group(1)}" if version else "torch"
    if shutil.which("nvidia-smi") or sys.platform != "linux" or is_cpu_build(python, wanted):
        index: list[str] = []
    elif is_cpu_build(python, wanted, "--index-url", CPU_INDEX, "--retries", "0", "--timeout", "10"):
        index = ["--index-url", CPU_INDEX]
    else:
        say("no CPU build of torch can be reached: the default build comes instead, about 3 GB with CUDA (Ctrl-C to stop)")
        index = []
    say(f"installing {wanted}")
    pip(python, "install", "--quiet", *index, wanted)


def is_cpu_build(python: Path, wanted: str, *options: str) -> bool:
    """Whether pip, with these options, would take a build of torch without CUDA."""
    command = [python, "-m", "pip", "install", "--dry-run", "--quiet", "--no-deps", "--ignore-installed", "--report", "-", *options, wanted]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        return False
    found = json.loads(done.stdout)["install"][0]
    needs = found["metadata"].get("requires_dist", [])
    return "+cpu" in found["metadata"]["version"] or not any("nvidia" in need or "cuda" in need for need in needs)


def pip(python: Path, *arguments: str) -> None:
    """Run pip; on failure its own message stands and this program ends with its code."""
    code = subprocess.run([python, "-m", "pip", "--disable-pip-version-check", *arguments], check=False).returncode
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

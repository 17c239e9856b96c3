"""Virtual environments of the contestants, each with its own pinned versions, made once under
.bench/.

Ours has the train extra alone, as the peers have what they need: PEFT imports bitsandbytes (45 MB)
wherever it is installed.
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
BENCH = ROOT / ".bench"
SHARED = ["transformers==5.23.0", "peft==0.21.2", "accelerate==1.15.0", "datasets==5.2.0"]
PINS = {"trl-1.16": ["trl==1.16.0", *SHARED], "trl-1.12": ["trl==1.12.0", *SHARED]}
"""trl 1.12 is the last release with PPO."""
OURS = "thumbwheel"


HERE = "here"


def option(parser: argparse.ArgumentParser) -> None:
    """`--python PATH|here`, for a machine on which no environment can be made."""
    parser.add_argument(
        "--python",
        metavar="PATH|here",
        help="run all contestants with this interpreter (here: the one of the benchmark itself) "
        "instead of environments of their own, which need a package index",
    )


def python_of(contestant: str, named: str | None = None) -> Path:
    """The interpreter that was `named` by the option, or that of the contestant's environment,
    which is made where it is missing (torch first, by install.py's choice of build)."""
    if named:
        return Path(sys.executable if named == HERE else named)
    venv = BENCH / contestant
    python = venv / "bin" / "python"
    if not (venv / ".complete").exists():
        sys.stderr.write(f"making the environment of {contestant} in {venv}\n")
        sys.path.insert(0, str(ROOT))
        import install

        if contestant == OURS:
            install.main(str(venv), "train")
        else:
            subprocess.run([sys.executable, "-m", "venv", str(venv)], check=True)
            install.install_torch(python)
            install.pip(python, "install", "--quiet", "torch==2.13.0", *PINS[contestant])
        (venv / ".complete").touch()
    return python

"""The last step before bubblewrap, a process of its own: `python launch.py JSON`. Standard library
only.

It enters the cgroups, becomes an unprivileged user where it was root (for root the limit of
processes does nothing), and becomes bubblewrap with an empty environment, because what bubblewrap
was started with can be read from within; the arguments go by a descriptor.
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any


def main(spec: dict[str, Any]) -> None:
    """Become `spec["program"]` with `spec["arguments"]`; `user` is the id to become, None to stay
    who one is."""
    for folder in spec["cgroups"]:
        Path(folder, "cgroup.procs").write_text(str(os.getpid()))
    if spec["user"] is not None:
        os.setgroups([])
        os.setresgid(spec["user"], spec["user"], spec["user"])
        os.setresuid(spec["user"], spec["user"], spec["user"])
    if spec["by_descriptor"]:
        reading, writing = os.pipe()
        os.write(writing, "\0".join(spec["by_descriptor"]).encode() + b"\0")
        os.close(writing)
        os.set_inheritable(reading, True)
        spec["arguments"] = ["--args", str(reading), *spec["arguments"]]
    os.execve(spec["program"], [spec["program"], *spec["arguments"]], {})


if __name__ == "__main__":
    main(json.loads(sys.argv[1]))

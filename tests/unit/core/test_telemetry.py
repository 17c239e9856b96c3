"""Nothing is told to anybody about the use of this project, not by the libraries that it stands on
either."""

import os
import subprocess
import sys

LOOK = """
import socket
looked_up = []
socket.getaddrinfo = lambda host, *_, **__: looked_up.append(host) or []
import thumbwheel.core
from huggingface_hub import hf_hub_download
try:
    hf_hub_download("stranger/model", "config.json", local_files_only=True)
except OSError:
    pass
print(looked_up)
"""


def test_a_look_into_the_local_cache_of_models_asks_nobody(tmp_path):
    quiet = ("HF_HUB_DISABLE_TELEMETRY", "HF_HUB_OFFLINE", "DO_NOT_TRACK", "DISABLE_TELEMETRY")
    environment = {name: value for name, value in os.environ.items() if name not in quiet} | {
        "HF_HOME": str(tmp_path)
    }
    done = subprocess.run(
        [sys.executable, "-c", LOOK], env=environment, capture_output=True, text=True, check=True
    )
    assert done.stdout.strip() == "[]"

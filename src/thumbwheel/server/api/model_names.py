"""Names of models that a request may give. On the command line some of them may be a folder; a
request never names one, because it would be read."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from thumbwheel.core.config import Home
from thumbwheel.core.errors import InputError
from thumbwheel.db.workspace import Workspace
from thumbwheel.models import versions
from thumbwheel.models.fetch import fetched_file
from thumbwheel.models.gguf.header import is_gguf
from thumbwheel.models.known_bases import KNOWN_BASES

BASES = frozenset({"base", "embeddings"})
"""Parameters that are a base model."""
REWARD_MODELS = frozenset({"reward_model"})
HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*")
FOLDER_NAME = re.compile(r"[A-Za-z0-9][\w.-]*")
REWARD_MODEL = re.compile(r"rm\d+|latest")


def model_name(ws: Workspace, parameter: str, value: Any) -> Any:
    """Return the value of a parameter in the form that the command takes.

    Raises InputError for a base that is neither one of this home nor a Hugging Face id, and for a
    reward model that is a folder.
    """
    if not isinstance(value, str):
        return value
    if parameter in BASES:
        return _base(ws, value)
    if parameter in REWARD_MODELS and not REWARD_MODEL.fullmatch(value):
        why = "a request names none by its folder"
        raise InputError(f"reward model {value!r}", why, "Give its name, as rm1")
    return value


def _base(ws: Workspace, name: str) -> str:
    folder = _folder_of_home(ws.home, name)
    if folder is not None:
        return str(folder)
    if name in versions.bases(ws):
        return name
    if name in KNOWN_BASES and fetched_file(KNOWN_BASES[name]).is_file():
        return name
    # An id of the hub that is also a folder would be read from there.
    if HUB_ID.fullmatch(name) and not os.path.exists(name):  # noqa: PTH110
        return name
    raise InputError(
        f"base {name!r}",
        "over the API a base is a Hugging Face id, one that a version here has, one that was "
        "fetched, or a folder or GGUF file in HOME/bases",
        "Link it there, in the server's home: ln -s /path/of/the/model HOME/bases/NAME, and give "
        "its NAME",
    )


def _folder_of_home(home: Home, name: str) -> Path | None:
    if not FOLDER_NAME.fullmatch(name):
        return None
    folder = home.bases / name
    # os.path, for which a name that is too long for a file is none
    if os.path.isdir(folder) or (os.path.isfile(folder) and is_gguf(folder)):  # noqa: PTH112, PTH113
        return folder.resolve()
    return None

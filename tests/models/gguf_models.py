"""Real GGUF files of a tiny tuned model: merged, its base, its adapter; made once a run by the
export's own formats."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path

from tests.models.tiny_models import tiny_adapter
from tests.servers.llama_tools import needs, wide_base
from thumbwheel.deploy.types import Package
from thumbwheel.export.formats.gguf import GGUF
from thumbwheel.export.formats.lora_gguf import LORA_GGUF
from thumbwheel.export.types import GGUF_ADAPTER, GGUF_MODEL, ExportSource, ModelKind


@cache
def gguf_folders(root: Path) -> dict[str, Path]:
    """Folders `base`, `adapter`, and with a GGUF file in each: `gguf`, `base_gguf`, `lora_gguf`."""
    needs("converter", "llama-server")
    base = wide_base(root / "base")
    adapter = tiny_adapter(base, root / "adapter")
    folders = {name: root / name for name in ("gguf", "base_gguf", "lora_gguf")}
    for folder in folders.values():
        folder.mkdir()
    GGUF.write(ExportSource(str(base), adapter, "tiny", "F16"), folders["gguf"])
    GGUF.write(ExportSource(str(base), None, "tiny", "F16"), folders["base_gguf"])
    LORA_GGUF.write(ExportSource(str(base), adapter, "tiny", "F16"), folders["lora_gguf"])
    return {"base": base, "adapter": adapter, **folders}


def package(
    folders: dict[str, Path],
    state_folder: Path,
    kind: ModelKind = GGUF_MODEL,
    version: str = "v3",
    system: str | None = None,
) -> Package:
    folder = folders[kind.name]
    files = {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest()
        for path in folder.iterdir()
        if path.is_file()
    }
    base = next(folders["base_gguf"].glob("*.gguf")) if kind == GGUF_ADAPTER else folder
    return Package(
        agent="support",
        version=version,
        name=f"support-{version}",
        kind=kind,
        folder=folder,
        files=files,
        base=base,
        base_fingerprint=None,
        tokenizer=folders["base"],
        state_folder=state_folder,
        stops=("<|im_end|>",),
        system=system,
    )

"""The policy's adapter on servers of its base: written to a folder that they read too, and loaded
over HTTP for each step (vLLM's calls).

Every step has a name of its own, which a server says with each answer. The name is the same in all
ranks of a run, and so are the files: whichever rank comes first writes and loads them.
"""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path
from typing import Any

from thumbwheel.core.errors import ConfigError, ThumbwheelError
from thumbwheel.core.files import unwritable
from thumbwheel.llm.client import Client, RequestRefused

POLICY_ADAPTER = "default"
"""PEFT's name of the adapter that is trained; a critic's has another one."""


class ServedPolicy:
    """Adapters of the newest steps of `model`, below `folder`, as `label` and the step. Those that
    are more than `max_lag` steps old are removed."""

    def __init__(self, model: Any, label: str, folder: Path, max_lag: int) -> None:
        kind = getattr(getattr(model, "peft_config", {}).get(POLICY_ADAPTER), "peft_type", None)
        if str(getattr(kind, "value", kind)) != "LORA":
            raise ConfigError(
                "endpoint_adapters",
                "servers load LoRA adapters only, and this run trains something else",
                "Train with LoRA, or leave endpoint_adapters out",
            )
        self._model, self._label = model, label
        self._folder, self.max_lag = folder, max_lag
        self._steps: dict[str, int] = {}

    def write(self, step: int) -> str:
        """Write the adapter as it is at `step`; return its name. Raises StorageError."""
        name = f"{self._label}-{step}"
        self._steps[name] = step
        target = self._folder / name
        try:
            self._folder.mkdir(parents=True, exist_ok=True)
            if target.exists():  # a rank of this run was faster
                return name
            temporary = Path(tempfile.mkdtemp(dir=self._folder, prefix="tmp-"))
            self._model.save_pretrained(
                temporary, save_embedding_layers=False, selected_adapters=[POLICY_ADAPTER]
            )
            # Servers may run as another user.
            temporary.chmod(0o755)
            for path in temporary.iterdir():
                path.chmod(0o644)
            try:
                temporary.rename(target)
            except OSError:
                shutil.rmtree(temporary, ignore_errors=True)
                if not target.exists():
                    raise
        except OSError as error:
            raise unwritable(f"adapter {str(target)!r}", error) from error
        return name

    def load(self, client: Client, name: str) -> None:
        """Let a server load the adapter `name`. Raises ModelError."""
        body = {"lora_name": name, "lora_path": str(self._folder / name)}
        try:
            client.send("POST", "load_lora_adapter", body)
        except RequestRefused:
            # vLLM refuses an adapter that another rank has loaded.
            if name not in model_entries(client):
                raise

    def step_of(self, name: Any) -> int | None:
        """Return the step of the adapter `name`, or None if it is none of the newest ones."""
        return self._steps.get(name)

    def remove_before(self, step: int, clients: list[Client]) -> None:
        """Remove the adapters of the steps before `step`, also from the servers of `clients`."""
        for name in [name for name, older in self._steps.items() if older < step]:
            for client in clients:
                try:
                    client.send("POST", "unload_lora_adapter", {"lora_name": name})
                except ThumbwheelError:
                    continue  # it is not there, or the server is not
            shutil.rmtree(self._folder / name, ignore_errors=True)
            del self._steps[name]

    def remove_all(self, clients: list[Client]) -> None:
        """Remove every adapter, also from the servers of `clients`."""
        self.remove_before(max(self._steps.values(), default=0) + 1, clients)


def model_entries(client: Client) -> dict[str, dict[str, Any]]:
    """Return what a server says about its models, by name. Raises ModelError."""
    entries = client.get("models").get("data")
    models: dict[str, dict[str, Any]] = {}
    for entry in entries if isinstance(entries, list) else ():
        if isinstance(entry, dict):
            models[str(entry.get("id"))] = entry
    return models

"""GGUF and Ollama by the names of the agent's RL pipeline, for an existing model folder.

A version that was trained here is exported by `thumbwheel export` and deployed by `thumbwheel
deploy`, which compare the file with the trained model and ask the gate. A bare folder has neither,
so it is exported unchecked.
"""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, cast, get_args

from thumbwheel.core.errors import Conflict, InputError, NotFound, ThumbwheelError
from thumbwheel.core.hardware import machine
from thumbwheel.deploy.modelfile import Modelfile
from thumbwheel.deploy.ollama_api import OllamaServer, address, full_name
from thumbwheel.deploy.profiles import Choice, choose
from thumbwheel.export.gguf_file import recommend

ALL_LAYERS = 99


@dataclass(frozen=True)
class GGUFQuantization:
    """A precision of GGUF: its name, about how many bits a weight takes, and what it is for."""

    name: str
    description: str
    bits: float
    recommended_for: str

    @staticmethod
    def available() -> dict[str, GGUFQuantization]:
        """Return the seven quantizations that the pipeline offered; `thumbwheel export --format
        gguf --quant` knows more."""
        return {quantization.name: quantization for quantization in QUANTIZATIONS}


QUANTIZATIONS = (
    GGUFQuantization("Q2_K", "2 bits, the smallest", 2.5, "very little memory"),
    GGUFQuantization("Q3_K_M", "3 bits, medium", 3.5, "little memory"),
    GGUFQuantization("Q4_K_M", "4 bits, balanced", 4.5, "most uses"),
    GGUFQuantization("Q5_K_M", "5 bits, good quality", 5.5, "quality before size"),
    GGUFQuantization("Q6_K", "6 bits, high quality", 6.5, "high quality"),
    GGUFQuantization("Q8_0", "8 bits, close to 16", 8.0, "the best quality of a small file"),
    GGUFQuantization("F16", "16 bits, not quantized", 16.0, "full precision"),
)


class GGUFExporter:
    """A model folder of Hugging Face as one GGUF file. The programs are those in `llama_cpp_path`,
    else the ones that `thumbwheel tools list` shows."""

    def __init__(
        self,
        model_path: str | Path,
        llama_cpp_path: str | Path | None = None,
        output_dir: str | Path | None = None,
    ) -> None:
        self.model_path = Path(model_path)
        self.llama_cpp_path = Path(llama_cpp_path) if llama_cpp_path else None
        self.output_dir = Path(output_dir) if output_dir else self.model_path.parent / "gguf"

    def convert(self, quantization: str = "Q4_K_M", output_name: str | None = None) -> str:
        """Write `MODEL-QUANT.gguf` and return its path.

        Raises NotFound for a missing model or tool, InputError for an unknown precision, Conflict
        where the file is there already.
        """
        from thumbwheel.llm.tools import programs_of

        with programs_of(self.llama_cpp_path):
            return self._convert(quantization, output_name)

    def _convert(self, quantization: str, output_name: str | None) -> str:
        from thumbwheel.export import gguf_file
        from thumbwheel.llm.convert import check_quantizer

        precision = quantization.upper()
        if precision not in gguf_file.QUANTS:
            raise InputError(
                f"quantization {quantization!r}",
                "there is no such precision",
                f"Known: {', '.join(gguf_file.QUANTS)}",
            )
        if not (self.model_path / "config.json").is_file():
            raise NotFound(
                f"model {str(self.model_path)!r}",
                "there is no model of Hugging Face",
                "Name a folder with a config.json",
            )
        check_quantizer(precision)
        self.output_dir.mkdir(parents=True, exist_ok=True)
        target = self.output_dir / (
            output_name or f"{self.model_path.name}-{precision}{gguf_file.SUFFIX}"
        )
        if target.exists():
            raise Conflict(
                f"file {str(target)!r}",
                "it already exists",
                "Remove it, or give another output_name",
            )
        with tempfile.TemporaryDirectory(prefix=".gguf-", dir=self.output_dir) as scratch:
            finished = Path(scratch) / target.name
            gguf_file.write(
                self.model_path, str(self.model_path), precision, finished, Path(scratch)
            )
            finished.rename(target)
        return str(target)

    def get_recommended_quantization(self, available_ram_gb: float | None = None) -> str:
        """Return the precision for this much memory in GB (default: the memory of this machine)."""
        return recommend(machine().ram_gb if available_ram_gb is None else available_ram_gb)


@dataclass
class OllamaHostingProfile:
    """How Ollama hosts models. `num_thread` 0 leaves it to Ollama."""

    name: str
    num_parallel: int = 1
    num_ctx: int = 4096
    num_gpu: int = 0
    num_thread: int = 0
    main_gpu: int = 0
    flash_attn: bool = False

    def to_env(self) -> dict[str, str]:
        """Return the environment of `ollama serve`. Threads and layers are not environment
        variables; they go with the model (`to_parameters`)."""
        environment = {
            "OLLAMA_NUM_PARALLEL": str(self.num_parallel),
            "OLLAMA_MAX_LOADED_MODELS": "2",
        }
        if self.flash_attn:
            environment["OLLAMA_FLASH_ATTENTION"] = "1"
        return environment

    def to_parameters(self) -> dict[str, int]:
        """Return the PARAMETER lines of a model: name -> value."""
        parameters = {"num_ctx": self.num_ctx, "num_gpu": self.num_gpu}
        if self.num_thread:
            parameters["num_thread"] = self.num_thread
        return parameters


class OllamaDeployer:
    """Makes and manages models of the Ollama at `host` (default: OLLAMA_HOST, else
    127.0.0.1:11434), by its API. `ollama_path` is the program, which is only needed to start a
    server."""

    def __init__(self, ollama_path: str = "ollama", *, host: str | None = None) -> None:
        self.ollama_path = ollama_path
        self.host = address(host)

    def create_modelfile(
        self,
        gguf_path: str | Path,
        system_prompt: str = "",
        temperature: float = 0.7,
        num_ctx: int = 4096,
        stop_tokens: Sequence[str] = (),
    ) -> str:
        """Return the text of a Modelfile. Raises InputError for values that a Modelfile cannot
        hold."""
        return self._modelfile(gguf_path, system_prompt, temperature, num_ctx, stop_tokens).text()

    def create_model(
        self,
        model_name: str,
        gguf_path: str | Path,
        system_prompt: str = "",
        temperature: float = 0.7,
        num_ctx: int = 4096,
        stop_tokens: Sequence[str] = (),
        parameters: Mapping[str, Any] | None = None,
    ) -> str:
        """Create or replace a model from a GGUF file, and return its name. `parameters` win over
        the other arguments."""
        modelfile = self._modelfile(gguf_path, system_prompt, temperature, num_ctx, stop_tokens)
        if parameters:
            modelfile = replace(modelfile, parameters={**modelfile.parameters, **parameters})
        return self.create_from(modelfile, model_name)

    def create_from(self, modelfile: Modelfile, model_name: str) -> str:
        """Create or replace a model over a GGUF file, and return its name. Raises NotFound where
        there is no such file."""
        path = Path(modelfile.base)
        if not path.is_file():
            raise NotFound(f"file {str(path)!r}", "it does not exist", "Name a GGUF file")
        with path.open("rb") as stream:
            digest = hashlib.file_digest(stream, "sha256").hexdigest()
        request = {"files": {path.name: f"sha256:{digest}"}, **modelfile.fields()}
        with OllamaServer(self.host) as server:
            server.put(path, digest)
            server.create(model_name, request)
        return model_name

    def list_models(self) -> list[dict[str, str]]:
        """Return name and digest of every model."""
        with OllamaServer(self.host) as server:
            return [{"name": name, "id": digest} for name, digest in server.digests().items()]

    def delete_model(self, model_name: str) -> bool:
        """Remove a model. Returns whether there was one."""
        with OllamaServer(self.host) as server:
            exists = full_name(model_name) in server.digests()
            server.delete(model_name)
        return exists

    def run_model(self, model_name: str, prompt: str) -> str:
        """Return the model's answer to one message."""
        import httpx2

        body = {"model": model_name, "messages": [{"role": "user", "content": prompt}]}
        with OllamaServer(self.host) as server:
            server.show(model_name)
        reply = httpx2.post(f"{self.host}/v1/chat/completions", json=body, timeout=600)
        reply.raise_for_status()
        return str(reply.json()["choices"][0]["message"]["content"])

    def get_ryzen_profile(self, cpu_cores: int = 16) -> OllamaHostingProfile:
        """Return the profile for a Ryzen with this many cores; two of them stay free."""
        parallel = max(1, min(4, cpu_cores // 4))
        return OllamaHostingProfile("ryzen_optimized", parallel, num_thread=max(1, cpu_cores - 2))

    def get_auto_profile(self) -> OllamaHostingProfile:
        return profile_of("auto")

    def start_server_with_profile(self, profile: OllamaHostingProfile) -> subprocess.Popen[bytes]:
        """Start `ollama serve` with the environment of a profile, and return its process. Raises
        NotFound where there is no such program."""
        environment = os.environ | {"OLLAMA_HOST": self.host} | profile.to_env()
        try:
            return subprocess.Popen(
                [self.ollama_path, "serve"],
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
            )
        except OSError as error:
            raise NotFound(
                f"program {self.ollama_path!r}",
                error.strerror or str(error),
                "Install Ollama, or name its program: OllamaDeployer(ollama_path)",
            ) from None

    def _modelfile(
        self,
        gguf_path: str | Path,
        system_prompt: str,
        temperature: float,
        num_ctx: int,
        stop_tokens: Sequence[str],
    ) -> Modelfile:
        parameters: dict[str, Any] = {"temperature": temperature, "num_ctx": num_ctx}
        if stop_tokens:
            parameters["stop"] = tuple(stop_tokens)
        return Modelfile(str(gguf_path), system=system_prompt or None, parameters=parameters)


def _profile_choice(hosting: str) -> Choice:
    choices = get_args(Choice)
    name = "ryzen_optimized" if hosting == "ryzen" else hosting
    if name not in choices:
        raise InputError(
            f"hosting {hosting!r}",
            "there is no such profile",
            f"Known: ryzen, {', '.join(choices)}",
        )
    return cast("Choice", name)


def profile_of(choice: Choice) -> OllamaHostingProfile:
    """Return the profile that `choice` gives on this machine, as the pipeline's class."""
    profile = choose(choice, machine())
    layers = profile.gpu_layers if profile.gpu_layers is not None else ALL_LAYERS
    return OllamaHostingProfile(
        profile.name,
        profile.parallel,
        profile.context,
        num_gpu=layers,
        num_thread=profile.threads or 0,
        flash_attn=profile.flash_attention,
    )


class ExportPipeline:
    """From a model folder to a model in Ollama. The results are returned and written to
    `export_results.json`."""

    def __init__(
        self,
        model_path: str | Path,
        model_name: str = "toolbox-agent",
        output_dir: str | Path | None = None,
        host: str | None = None,
    ) -> None:
        self.model_path = Path(model_path)
        self.model_name = model_name
        self.output_dir = Path(output_dir) if output_dir else self.model_path.parent / "export"
        self.gguf_exporter = GGUFExporter(self.model_path, output_dir=self.output_dir)
        self.ollama_deployer = OllamaDeployer(host=host)

    def run(
        self, quantization: str = "Q4_K_M", system_prompt: str = "", hosting_profile: str = "auto"
    ) -> dict[str, Any]:
        """Convert, then make the model; `hosting_profile` is auto, ryzen or a profile of
        `thumbwheel deploy`.

        A failure stands under `error`, and `success` is then false. Without an Ollama nothing is
        converted.
        """
        results: dict[str, Any] = {
            "start_time": _now(),
            "model_path": str(self.model_path),
            "model_name": self.model_name,
            "quantization": quantization,
            "success": False,
        }
        try:
            profile = profile_of(_profile_choice(hosting_profile))
            self.ollama_deployer.list_models()
            path = Path(self.gguf_exporter.convert(quantization))
            results |= {"gguf_path": str(path), "gguf_size_mb": path.stat().st_size / 1e6}
            served = self.ollama_deployer.create_model(
                self.model_name, path, system_prompt, parameters=profile.to_parameters()
            )
            results["ollama_model"] = served
            results["hosting_profile"] = vars(profile)
            results["success"] = True
            self._write("hosting_profile.json", vars(profile))
        except ThumbwheelError as error:
            results["error"] = str(error)
        results["end_time"] = _now()
        self._write("export_results.json", results)
        return results

    def _write(self, name: str, value: dict[str, Any]) -> None:
        self.output_dir.mkdir(parents=True, exist_ok=True)
        (self.output_dir / name).write_text(
            json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8"
        )


def quick_export(
    model_path: str | Path, model_name: str = "toolbox-agent", quantization: str = "Q4_K_M"
) -> str:
    """Run `ExportPipeline(...).run(...)` and return the name of the model in Ollama. Raises
    Conflict with the cause of a failure."""
    results = ExportPipeline(model_path, model_name).run(quantization)
    if not results["success"]:
        raise Conflict(
            f"export of {str(model_path)!r}", str(results["error"]), "Fix that, then export again"
        )
    return str(results["ollama_model"])


def _now() -> str:
    return datetime.now(UTC).isoformat()

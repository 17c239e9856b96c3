"""Adapters, model folders and GGUF files of strangers: refused or harmless, soon, in little memory,
and no code of theirs runs. The long form loads each of them in a process with bounded memory."""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from tests.distributions import source_files
from tests.models.tiny_models import tiny_adapter, tiny_base
from thumbwheel.core.errors import InputError, ModelError
from thumbwheel.engine.adapter_check import check_adapter
from thumbwheel.evaluation.served import gguf
from thumbwheel.models.base import require_regular_files

GIBIBYTE = 2**30
MEMORY = 6 * GIBIBYTE
"""Address space of the process that loads; torch alone maps some gibibytes."""
SECONDS = 20
"""Of the processor, in which a load has to end, one way or the other."""
MODULE = "stranger_module"
ADAPTERS: dict[str, dict[str, Any]] = {
    "a module of its own": {"megatron_config": {"a": 1}, "megatron_core": MODULE},
    "a class of its own": {"auto_mapping": {"base_model_class": "X", "parent_library": MODULE}},
    "a kind of its own": {"peft_type": f"{MODULE}.X"},
    "a rank": {"r": 10**6},
    "a rank that is no number": {"r": "x"},
    "a rank below zero": {"r": -1},
    "ranks": {"rank_pattern": {"q_proj": 10**7}},
    "an expression": {"target_modules": "(.*.*)*x"},
    "expressions": {"target_modules": ["((.+)+)+$!"]},
    "an expression of ranks": {"rank_pattern": {"(.*.*)*x": 8}},
    "an expression of factors": {"alpha_pattern": {"(a|a)*b": 8}},
    "many repetitions": {"exclude_modules": ".*.*.*.*.*.*.*.*x"},
    "layers": {"layer_replication": [[0, 2]] * 3000},
    "tokens": {"trainable_token_indices": list(range(100_000))},
    "virtual tokens": {"peft_type": "PROMPT_TUNING", "num_virtual_tokens": 10**8},
    "another way out": {"base_model_name_or_path": "../../../../etc"},
    "no numbers": {"lora_alpha": "x" * 100, "lora_dropout": "y"},
}
REFUSED_SOON = set(ADAPTERS) - {
    "a module of its own",
    "a class of its own",
    "a kind of its own",
    "another way out",
    "no numbers",
}
"""Those that are refused before a library looks at them; the others harm nobody there."""


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a base and an adapter that are as they should be."""
    pytest.importorskip("torch")
    folder = tmp_path_factory.mktemp("models")
    tiny_adapter(tiny_base(folder / "base"), folder / "adapter")
    return folder


def changed(models: Path, folder: Path, name: str, file: str, **settings: Any) -> Path:
    """A copy of one of the models whose JSON file has these settings."""
    folder.mkdir(parents=True)
    for path in (models / name).iterdir():
        if path.is_file():
            (folder / path.name).write_bytes(path.read_bytes())
    content = json.loads((folder / file).read_text())
    (folder / file).write_text(json.dumps(content | settings))
    return folder


def test_an_adapter_of_ours_is_believed(models: Path) -> None:
    check_adapter(models / "adapter")


@pytest.mark.parametrize("attack", sorted(REFUSED_SOON))
def test_an_adapter_that_asks_for_too_much_is_refused(
    attack: str, models: Path, tmp_path: Path
) -> None:
    folder = changed(
        models, tmp_path / "adapter", "adapter", "adapter_config.json", **ADAPTERS[attack]
    )
    with pytest.raises(ModelError):
        check_adapter(folder)


@pytest.mark.parametrize("content", ["", "[]", "null", "[" * 100_000, "\x00", "{"])
def test_a_config_that_is_none_is_refused(content: str, models: Path, tmp_path: Path) -> None:
    folder = changed(models, tmp_path / "adapter", "adapter", "adapter_config.json")
    (folder / "adapter_config.json").write_text(content)
    with pytest.raises(ModelError):
        check_adapter(folder)


def test_what_is_no_file_is_waited_for_by_nobody(models: Path, tmp_path: Path) -> None:
    folder = changed(models, tmp_path / "base", "base", "config.json")
    fifo, link = tmp_path / "fifo.gguf", tmp_path / "link.gguf"
    os.mkfifo(fifo)
    link.symlink_to("/dev/zero")
    for path in (fifo, link, tmp_path, tmp_path / "none.gguf"):
        with pytest.raises(InputError):
            gguf("v1", path)
    for name in ("tokenizer.json", "extra.safetensors"):
        (folder / name).unlink(missing_ok=True)
        os.mkfifo(folder / name)
        with pytest.raises(ModelError, match="FIFO"):
            require_regular_files(folder)
        (folder / name).unlink()


def test_no_library_asks_a_terminal_whether_strange_code_may_run() -> None:
    """Where nothing is said, transformers asks on the terminal, and takes what stands in standard
    input for the answer."""
    silent = []
    calls = 0
    for path in source_files():
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
                continue
            owner = ast.unparse(node.func.value)
            is_auto = "Auto" in owner or "auto_class" in owner
            if node.func.attr != "from_pretrained" or not is_auto:
                continue
            calls += 1
            names = {keyword.arg for keyword in node.keywords}
            if "trust_remote_code" not in names and None not in names:  # None: **source
                silent.append(f"{path.name}:{node.lineno}")
    assert calls >= 8 and silent == []


# the long form: everything is really loaded

PROGRAM = """
import json, resource, signal, sys
from pathlib import Path

def give_up(*_):
    print(json.dumps("it takes too long"), flush=True)
    raise SystemExit(3)

# of the processor's time, as other processes may have it; the parent waits no longer than its own
signal.signal(signal.SIGPROF, give_up)
import torch
torch.set_num_threads(1)
from thumbwheel.core.errors import ThumbwheelError
from thumbwheel.engine.load import adapter_base, load_adapter, load_base, load_config
from thumbwheel.engine.load import load_scorer, load_tokenizer
from thumbwheel.models.base import locate

memory, seconds, base = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
for folder in map(Path, sys.argv[4:]):
    signal.setitimer(signal.ITIMER_PROF, seconds)
    results = []
    if (folder / "adapter_config.json").exists():
        model, _ = load_base(base, "float32")
        actions = (lambda folder: load_adapter(model, folder), adapter_base)
    else:
        actions = (locate, load_base, load_scorer, load_config, load_tokenizer)
    for action in actions:
        try:
            action(str(folder))
            results.append("loaded")
        except ThumbwheelError as error:
            results.append(type(error).__name__)
    signal.setitimer(signal.ITIMER_PROF, 0)
    print(json.dumps(results), flush=True)
print(json.dumps("end"), flush=True)
"""


def loaded(models: Path, folders: list[Path], marker: Path, seconds: int = SECONDS) -> list[Any]:
    """What becomes of each folder in a process with bounded memory, in which a module of the
    stranger can be imported; none of their code may have run."""
    modules = marker.parent / "modules"
    modules.mkdir(exist_ok=True)
    (modules / f"{MODULE}.py").write_text(f"open({str(marker)!r}, 'w').close()\n")
    paths = [str(modules), *os.environ.get("PYTHONPATH", "").split(os.pathsep)]
    environment = {"PYTHONPATH": os.pathsep.join(paths), "HF_HUB_OFFLINE": "1"}
    command = [sys.executable, "-c", textwrap.dedent(PROGRAM), str(MEMORY), str(seconds)]
    command += [str(models / "base"), *map(str, folders)]
    process = subprocess.run(
        command,
        cwd=modules,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        timeout=120 + 10 * seconds * len(folders),
        check=False,
    )
    results = [json.loads(line) for line in process.stdout.splitlines()]
    assert results and results[-1] == "end", process.stdout + process.stderr[-3000:]
    assert not marker.exists(), "code of the stranger ran"
    return results[:-1]


@pytest.mark.repeat
def test_no_adapter_runs_code_hangs_or_takes_the_memory(models: Path, tmp_path: Path) -> None:
    folders = [models / "adapter"]
    for number, settings in enumerate(ADAPTERS.values()):
        folder = tmp_path / f"adapter-{number}"
        folders.append(changed(models, folder, "adapter", "adapter_config.json", **settings))
    pickled = changed(models, tmp_path / "pickled", "adapter", "adapter_config.json")
    (pickled / "adapter_model.safetensors").unlink()
    both = changed(models, tmp_path / "both", "adapter", "adapter_config.json")
    for folder in (pickled, both):
        (folder / "adapter_model.bin").write_bytes(malicious_pickle(tmp_path / "marker"))
    cut = changed(models, tmp_path / "cut", "adapter", "adapter_config.json")
    weights = cut / "adapter_model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-100])
    huge = changed(models, tmp_path / "huge", "adapter", "adapter_config.json")
    (huge / "adapter_model.safetensors").write_bytes((2**60).to_bytes(8, "little") + b"{}")
    results = loaded(models, [*folders, pickled, both, cut, huge], tmp_path / "marker")
    assert results[0] == ["loaded", "loaded"]
    by_attack = dict(zip(ADAPTERS, results[1:], strict=False))
    assert {attack for attack in REFUSED_SOON if by_attack[attack][0] != "ModelError"} == set()
    pickled_result, both_result, cut_result, huge_result = results[-4:]
    assert pickled_result[0] == cut_result[0] == huge_result[0] == "ModelError"
    assert both_result[0] == "loaded", "the pickle beside the safetensors is not looked at"


def malicious_pickle(marker: Path) -> bytes:
    """A pickle that makes a file where it is read."""
    path = str(marker).encode()
    return b"cbuiltins\nopen\n(V" + path + b"\nVw\ntR."


TOKENIZER: dict[str, dict[str, Any]] = {
    "code": {"auto_map": {"AutoTokenizer": [f"{MODULE}.T", f"{MODULE}.T"]}},
    "code of the hub": {"auto_map": {"AutoTokenizer": "stranger/repository--module.T"}},
    "a class of its own": {"tokenizer_class": f"{MODULE}.T"},
    "a long template": {"chat_template": "{{ 'x' * 10**9 }}"},
    "a template without end": {"chat_template": "{% for i in range(10**12) %}x{% endfor %}"},
    "a way out of the template": {
        "chat_template": "{{ ''.__class__.__mro__[1].__subclasses__() }}"
    },
    "a file elsewhere": {"vocab_file": "../../../../etc/passwd", "tokenizer_file": "/etc/passwd"},
}
CONFIG: dict[str, dict[str, Any]] = {
    "code": {"auto_map": {"AutoModelForCausalLM": f"{MODULE}.M", "AutoConfig": f"{MODULE}.C"}},
    "code of another kind": {"model_type": "stranger", "auto_map": {"AutoConfig": f"{MODULE}.C"}},
    "layers": {"num_hidden_layers": 900, "intermediate_size": 9_000_000},
    "a vocabulary": {"vocab_size": 9_000_000},
    "quantised by code": {"quantization_config": {"quant_method": MODULE}},
    "attention by the hub": {"_attn_implementation": "stranger/kernels"},
    "a base elsewhere": {"_name_or_path": "/etc", "backbone": "/etc", "use_pretrained_backbone": 1},
}


@pytest.mark.repeat
def test_no_model_folder_runs_code_hangs_or_takes_the_memory(models: Path, tmp_path: Path) -> None:
    folders = [models / "base"]
    for file, attacks in (("tokenizer_config.json", TOKENIZER), ("config.json", CONFIG)):
        for number, settings in enumerate(attacks.values()):
            folder = tmp_path / f"{file}-{number}"
            folders.append(changed(models, folder, "base", file, **settings))
            (folder / f"{MODULE}.py").write_text(f"open({str(tmp_path / 'marker')!r}, 'w')\n")
    pickled = changed(models, tmp_path / "pickled", "base", "config.json")
    for path in pickled.glob("*.safetensors"):
        path.unlink()
    (pickled / "pytorch_model.bin").write_bytes(malicious_pickle(tmp_path / "marker"))
    index = changed(models, tmp_path / "index", "base", "config.json")
    (index / "model.safetensors").rename(index / "model-00001-of-00001.safetensors")
    elsewhere = {"weight_map": {"lm_head.weight": "../../../../../etc/passwd"}}
    (index / "model.safetensors.index.json").write_text(json.dumps(elsewhere | {"metadata": {}}))
    device = changed(models, tmp_path / "device", "base", "config.json")
    (device / "extra.safetensors").symlink_to("/dev/zero")
    results = loaded(models, [*folders, pickled, index, device], tmp_path / "marker")
    assert set(results[0]) == {"loaded"}
    assert results[-3][1] == results[-2][1] == results[-1][1] == "ModelError"
    sizes = [*TOKENIZER, *CONFIG].index("layers") + 1
    assert results[sizes][1] == "ModelError"


@pytest.mark.repeat
@pytest.mark.tools
def test_no_gguf_file_ends_more_than_the_process_that_reads_it(tmp_path: Path) -> None:
    from thumbwheel.llm.library import Model

    def text(value: bytes) -> bytes:
        return len(value).to_bytes(8, "little") + value

    magic, version = b"GGUF", (3).to_bytes(4, "little")
    many, none = (2**60).to_bytes(8, "little"), bytes(8)
    contents = {
        "nothing": b"",
        "another file": b"PK\x03\x04" * 100,
        "magic alone": magic,
        "many tensors": magic + version + many + none,
        "many keys": magic + version + none + many,
        "a long name": magic + version + bytes([1, *bytes(7)]) + none + many,
        "a long text": magic
        + version
        + none
        + (1).to_bytes(8, "little")
        + text(b"general.name")
        + (8).to_bytes(4, "little")
        + many,
        "zeros": magic + version + bytes(1 << 20),
    }
    for name, content in contents.items():
        path = tmp_path / f"{name.replace(' ', '-')}.gguf"
        path.write_bytes(content)
        with pytest.raises(ModelError):
            Model(path)

"""GGUF: the file in llama.cpp is the trained model, every precision says what it costs, and what
cannot be converted ends in an error."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tokenizers import normalizers

from tests.command_line import Run
from tests.models.tiny_models import tiny_adapter, tiny_base, tiny_tokenizer, tuned_version
from tests.servers.llama_tools import needs, wide_base
from thumbwheel.core.config import Home, Sources
from thumbwheel.core.errors import Conflict, InputError, ModelError, NotFound
from thumbwheel.db.workspace import Workspace
from thumbwheel.evaluation.types import HeldOutCase
from thumbwheel.export import gguf_file, parity
from thumbwheel.export.formats import FORMATS
from thumbwheel.export.package import export, exports, ladder
from thumbwheel.export.types import GGUF_MODEL, ExportSource, Parity
from thumbwheel.llm import convert, tools
from thumbwheel.llm.library import describe, quantize
from thumbwheel.models.versions import version as named

pytestmark = pytest.mark.tools

RUNGS = ("F16", "Q8_0", "Q6_K", "Q5_K_M", "Q4_K_M", "Q4_0", "Q3_K_M", "Q2_K")
LONG = [
    [
        {
            "role": "user",
            "content": f"{start}: the quick brown fox jumps over 17 lazy dogs, naïve ones. " * 4,
        }
    ]
    for start in range(5)
]


@pytest.fixture(autouse=True)
def _tools() -> None:
    needs("converter", "library", "bindings")


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> ExportSource:
    folder = tmp_path_factory.mktemp("wide")
    base = wide_base(folder / "base")
    return ExportSource(str(base), tiny_adapter(base, folder / "adapter"), str(base))


@pytest.fixture(scope="module")
def trained_reference(trained: ExportSource) -> parity.ParityReference:
    return parity.reference(trained, [*parity.PROBES, *LONG])


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("scratch")


def rung(
    trained: ExportSource,
    trained_reference: parity.ParityReference,
    quant: str,
    scratch: Path,
    folder: Path,
    format: str = "gguf",
) -> Parity:
    form = FORMATS.get(format)
    folder.mkdir()
    form.write(replace(trained, quant=quant, scratch=scratch), folder)
    return parity.compare_folder(trained_reference, form, folder)


def test_f16_in_llama_cpp_is_the_trained_model(
    trained: ExportSource, trained_reference: parity.ParityReference, scratch: Path, tmp_path: Path
) -> None:
    result = rung(trained, trained_reference, "F16", scratch, tmp_path / "out")
    assert result.failures == []
    assert result.tokens >= 200
    assert result.max_abs_diff < 0.05
    assert result.top1 >= 0.99
    assert result.effect_kl is not None
    assert result.effect_kl > 0.01
    assert (result.dtype, result.same_prompts, result.same_text, result.ends) == (
        "F16",
        True,
        True,
        (),
    )
    assert any("NFC" in note for note in result.notes), (
        "Qwen's tokenizer composes accents and llama.cpp does not"
    )
    assert {"chat_template.jinja", "tokenizer.json", "model-F16.gguf"} <= {
        path.name for path in (tmp_path / "out").iterdir()
    }
    template = describe(tmp_path / "out" / "model-F16.gguf")["template"]
    assert template == (tmp_path / "out" / "chat_template.jinja").read_text()


@pytest.mark.slow
def test_kl_rises_over_the_ladder(
    trained: ExportSource, trained_reference: parity.ParityReference, scratch: Path, tmp_path: Path
) -> None:
    results = [
        rung(trained, trained_reference, quant, scratch, tmp_path / quant) for quant in RUNGS
    ]
    assert [result.dtype for result in results] == list(RUNGS)
    kls, sizes = [result.mean_kl for result in results], [result.size for result in results]
    assert kls == sorted(kls)
    assert sizes == sorted(sizes, reverse=True)
    assert len(set(kls)) == len(set(sizes)) == len(RUNGS)
    assert all(
        result.base_kl is not None and result.base_kl > result.mean_kl for result in results
    ), "what was trained survives each"
    assert results[1].failures == []
    assert any("top-1" in text for text in results[-1].failures), (
        "random weights at two bits are another model"
    )


def test_the_library_and_llama_quantize_write_the_same_bytes(
    trained: ExportSource, scratch: Path, tmp_path: Path
) -> None:
    needs("llama-quantize")
    (tmp_path / "out").mkdir()
    FORMATS.get("gguf").write(replace(trained, quant="Q4_K_M", scratch=scratch), tmp_path / "out")
    quantize(scratch / "F32.gguf", tmp_path / "library.gguf", "Q4_K_M")
    assert (tmp_path / "library.gguf").read_bytes() == (
        tmp_path / "out" / "model-Q4_K_M.gguf"
    ).read_bytes()


@pytest.mark.slow
@pytest.mark.parametrize("family", ["qwen2", "llama"])
def test_an_adapter_as_gguf_over_its_base_is_the_merged_model(family: str, tmp_path: Path) -> None:
    base = wide_base(tmp_path / "base", family)
    source = ExportSource(str(base), tiny_adapter(base, tmp_path / "adapter"), str(base))
    trained_reference = parity.reference(source, parity.PROBES)
    result = rung(source, trained_reference, "F32", tmp_path, tmp_path / "out", "lora_gguf")
    assert result.failures == []
    assert result.max_abs_diff < 0.02
    assert result.base_kl is not None
    assert result.base_kl > 0.01 > result.mean_kl
    assert json.loads((tmp_path / "out" / "adapter_config.json").read_text())[
        "base_model_name_or_path"
    ] == str(base)


@pytest.mark.slow
def test_bos_and_a_second_stop_token_come_along(tmp_path: Path) -> None:
    tokenizer = tiny_tokenizer(bos=True)
    tokenizer.eos_token = "<|endoftext|>"  # the turn ends with another one
    base = wide_base(tmp_path / "base", "llama", tokenizer=tokenizer)
    source = ExportSource(str(base), tiny_adapter(base, tmp_path / "adapter"), str(base))
    trained_reference = parity.reference(source, parity.PROBES)
    assert trained_reference.stops == ("<|im_end|>", "<|endoftext|>")
    result = rung(source, trained_reference, "F16", tmp_path, tmp_path / "out")
    assert (result.same_prompts, result.same_text, result.ends) == (True, True, ())
    assert trained_reference.prompts[0][0] == tokenizer.bos_token_id


@pytest.mark.slow
def test_another_template_in_the_file_is_found(
    trained: ExportSource, trained_reference: parity.ParityReference, scratch: Path, tmp_path: Path
) -> None:
    form = FORMATS.get("gguf")
    tokenizer = tiny_tokenizer("{% for m in messages %}{{ m['content'] }}{% endfor %}")
    other = tiny_base(
        tmp_path / "other", tokenizer=tokenizer, hidden_size=256, intermediate_size=512, head_dim=64
    )
    (tmp_path / "out").mkdir()
    form.write(ExportSource(str(other), None, str(other), "F16"), tmp_path / "out")
    assert not parity.compare_folder(trained_reference, form, tmp_path / "out").same_prompts


@pytest.mark.slow
def test_rows_that_a_precision_cannot_take_are_said(tmp_path: Path) -> None:
    base = tiny_base(
        tmp_path / "base",
        hidden_size=64,
        head_dim=16,
        intermediate_size=128,
        initializer_range=0.05,
    )
    source = ExportSource(str(base), None, str(base))
    result = rung(
        source, parity.reference(source, parity.PROBES), "Q4_K_M", tmp_path, tmp_path / "out"
    )
    assert any("could not take Q4_K_M" in note and "Q5_0" in note for note in result.notes)


@pytest.mark.parametrize(
    "setting", [{"use_rslora": True}, {"alpha_pattern": {"q_proj": 8}}, {"lora_bias": True}]
)
def test_an_adapter_that_llama_cpp_would_scale_otherwise_is_refused(
    trained: ExportSource, setting: dict[str, object], tmp_path: Path
) -> None:
    assert trained.adapter
    config = json.loads((trained.adapter / "adapter_config.json").read_text())
    (tmp_path / "adapter_config.json").write_text(json.dumps(config | setting))
    with pytest.raises(ModelError, match=f"this adapter has {next(iter(setting))}.*--format gguf"):
        FORMATS.get("lora_gguf").write(replace(trained, adapter=tmp_path), tmp_path / "out")


def test_what_llama_cpp_does_not_have_is_said(tmp_path: Path) -> None:
    base = tiny_base(tmp_path / "base")
    config = json.loads((base / "config.json").read_text())
    (base / "config.json").write_text(json.dumps(config | {"architectures": ["SomethingElse"]}))
    with pytest.raises(ModelError, match="does not support a model of family 'qwen2'"):
        convert.convert(base, tmp_path / "out.gguf", "F16", "qwen2", [1])
    assert not (tmp_path / "out.gguf").exists()


@pytest.mark.slow
def test_an_unknown_tokenizer_is_refused_unless_its_family_is_known(tmp_path: Path) -> None:
    from tokenizers import Regex, pre_tokenizers

    tokenizer = tiny_tokenizer()
    split = pre_tokenizers.Split(Regex(r"\d{2}"), "isolated")
    bytes_ = pre_tokenizers.ByteLevel(use_regex=False, add_prefix_space=False)
    tokenizer.backend_tokenizer.pre_tokenizer = pre_tokenizers.Sequence([split, bytes_])
    base = tiny_base(tmp_path / "base", "llama", tokenizer=tokenizer)
    with pytest.raises(ModelError, match="how its tokenizer splits text"):
        convert.convert(base, tmp_path / "out.gguf", "F16", "novel", [1])
    source = ExportSource(str(base), None, str(base))
    result = rung(
        source, parity.reference(source, parity.PROBES), "F16", tmp_path, tmp_path / "out"
    )
    assert not result.same_text, "the family's way is a guess, and the probes find it wrong"


def test_a_missing_quantiser_is_an_error_that_names_the_fix(
    trained: ExportSource, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    find = tools.find
    monkeypatch.setattr(
        tools, "find", lambda name: None if name in ("llama-quantize", "library") else find(name)
    )
    with pytest.raises(NotFound, match="thumbwheel tools install"):
        FORMATS.get("gguf").write(replace(trained, quant="Q4_K_M"), tmp_path)
    assert not list(tmp_path.glob("*.gguf"))


def test_a_damaged_file_is_an_error_and_not_the_end(tmp_path: Path) -> None:
    (tmp_path / "model-F16.gguf").write_bytes(b"GGUF" + bytes(100))
    with pytest.raises(ModelError, match="library"):
        FORMATS.get("gguf").open(tmp_path, torch.float32)


def test_precisions_have_names(
    empty_ws: Workspace, tiny_model: Path, adapter: Path, tmp_path: Path
) -> None:
    tuned_version(empty_ws, tiny_model, adapter)
    with pytest.raises(NotFound, match="Did you mean 'Q4_K_M'"):
        export(empty_ws, named(empty_ws, "support", "v1"), "gguf", tmp_path / "out", "q4_km")
    with pytest.raises(NotFound, match="keeps the precision of the base"):
        export(empty_ws, named(empty_ws, "support", "v1"), "merged", tmp_path / "out", "q4_k_m")
    with pytest.raises(InputError, match="a name and a reason"):
        export(
            empty_ws, named(empty_ws, "support", "v1"), "gguf", tmp_path / "out", "f16", accept="me"
        )
    assert not (tmp_path / "out").exists()
    with pytest.raises(InputError, match="memory cannot be negative"):
        gguf_file.recommend(-1)
    assert [gguf_file.recommend(memory) for memory in (64, 31, 15, 7, 2, None)] == [
        "Q8_0",
        "Q6_K",
        "Q4_K_M",
        "Q3_K_M",
        "Q2_K",
        "Q4_K_M",
    ]


@pytest.mark.slow
def test_an_export_that_is_not_the_model_is_taken_by_name_only(
    empty_ws: Workspace, trained: ExportSource, tmp_path: Path
) -> None:
    assert trained.adapter
    version = tuned_version(empty_ws, Path(trained.base), trained.adapter)
    with pytest.raises(ModelError, match=r"top-1.*The export was deleted.*--accept"):
        export(empty_ws, named(empty_ws, "support", "v1"), "gguf", tmp_path / "out", "q2_k")
    assert not (tmp_path / "out").exists()
    done = export(
        empty_ws,
        named(empty_ws, "support", "v1"),
        "gguf",
        tmp_path / "out",
        "q2_k",
        accept="Ada: only to try the road",
    )
    assert (done.accepted, done.deployable, done.quant) == (
        "Ada: only to try the road",
        True,
        "Q2_K",
    )
    assert "Taken by Ada" in (done.path / "README.md").read_text()
    assert (
        json.loads((done.path / "thumbwheel.json").read_text())["accepted"]
        == "Ada: only to try the road"
    )
    assert exports(empty_ws, version) == [done]
    assert sorted(path.name for path in tmp_path.iterdir() if path.name != "home") == ["out"]


@pytest.mark.slow
def test_a_ladder_shows_what_it_does_not_keep(
    empty_ws: Workspace, trained: ExportSource, tmp_path: Path
) -> None:
    assert trained.adapter
    version = tuned_version(empty_ws, Path(trained.base), trained.adapter)
    with pytest.raises(InputError, match="Leave --ladder out"):
        list(
            ladder(
                empty_ws, named(empty_ws, "support", "v1"), "merged", FORMATS.get("merged").quants
            )
        )
    (tmp_path / "taken" / "support-v1-gguf-Q2_K" / "mine").mkdir(parents=True)
    with pytest.raises(Conflict, match="it already contains files"):
        list(
            ladder(
                empty_ws,
                named(empty_ws, "support", "v1"),
                "gguf",
                ["q8_0", "q2_k"],
                tmp_path / "taken",
            )
        )
    assert len(list((tmp_path / "taken").iterdir())) == 1, "seen before the first is made"
    done = list(
        ladder(
            empty_ws,
            named(empty_ws, "support", "v1"),
            "gguf",
            ["q8_0", "Q2_K", "Q8_0"],
            tmp_path / "rungs",
        )
    )
    assert [(result.quant, result.deployable, bool(result.files)) for result in done] == [
        ("Q8_0", True, True),
        ("Q2_K", False, False),
    ]
    assert [path.name for path in (tmp_path / "rungs").iterdir()] == ["support-v1-gguf-Q8_0"]
    assert exports(empty_ws, version) == done


CHILD = """
import resource, signal, sys
from pathlib import Path
from thumbwheel.core.config import Home, Sources
from thumbwheel.db.workspace import Workspace
from thumbwheel.export import package
from thumbwheel.models.versions import version as named
home, out, quant = sys.argv[1:]
with Workspace.open(Home(Path(home)), Sources({}, "", {})) as ws:
    package.parity.compare_folder  # loaded before the disk is full
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    # holds the merged model, and not the file that is made of it
    resource.setrlimit(resource.RLIMIT_FSIZE, (5_300_000, 5_300_000))
    try:
        package.export(ws, named(ws, "support", "v1"), "gguf", Path(out), quant)
    except Exception as error:
        print(type(error).__name__, getattr(error, "exit_code", None), error)
"""


@pytest.mark.slow
def test_a_full_disk_leaves_nothing(trained: ExportSource, tmp_path: Path) -> None:
    assert trained.adapter
    with Workspace.open(Home(tmp_path / "home"), Sources({}, "", {})) as ws:
        tuned_version(ws, Path(trained.base), trained.adapter)
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-c", CHILD, str(tmp_path / "home"), str(tmp_path / "out"), "F32"]
    done = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert done.stdout.startswith("StorageError 7"), done.stdout + done.stderr
    assert [path.name for path in tmp_path.iterdir()] == ["home"]


@pytest.mark.slow
def test_cases_are_scored_beside_the_trained_model(
    trained: ExportSource, scratch: Path, tmp_path: Path
) -> None:
    def case(number: int, reference: str) -> HeldOutCase:
        prompt = [{"role": "user", "content": f"Question {number}: 17 * {number}?"}]
        return HeldOutCase(
            f"case{number}",
            f"group{number}",
            f"prompt{number}",
            prompt,
            reference,
            "exact_answer",
            None,
            {},
        )

    asked = parity.reference(trained, parity.PROBES, [case(number, "") for number in range(6)])
    texts = [result.text for result, *_ in asked.answers]
    trained_reference = replace(
        asked,
        cases=[case(number, text if number % 3 else "no") for number, text in enumerate(texts)],
    )
    task = rung(trained, trained_reference, "F16", scratch, tmp_path / "out").task
    assert task is not None
    assert (task.cases, task.trained) == (6, pytest.approx(4 / 6))
    assert abs(task.score - task.trained) <= 1 / 3
    assert task.low <= task.score - task.trained <= task.high


@pytest.mark.slow
def test_the_command_shows_a_ladder(
    command_line: Run, trained: ExportSource, tmp_path: Path
) -> None:
    assert trained.adapter
    with Workspace.open(Home(tmp_path / "home"), Sources({}, "", {})) as ws:
        tuned_version(ws, Path(trained.base), trained.adapter)
    command = ("export", "v1", "--agent", "support", "--format", "gguf", "--cases", "0")
    code, out, error = command_line(*command, "--ladder", "f16,q2_k", "--to", "rungs")
    assert code == 0, error
    assert "support v1 as gguf" in out
    assert "not kept" in out
    code, out, error = command_line(*command, "--quant", "f16", "--json")
    assert code == 0, error
    answer = json.loads(out)
    assert (answer["quant"], answer["deployable"], answer["stops"]) == ("F16", True, ["<|im_end|>"])
    assert "llama-server -m" in (tmp_path / "support-v1-gguf-F16" / "README.md").read_text()
    code, _, error = command_line(*command, "--ladder", "f16", "--quant", "f16")
    assert code == 2
    assert "Give one or the other" in error


@pytest.mark.slow
def test_the_tokens_are_compared_before_any_weight_is_converted(
    trained: ExportSource, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = Path(trained.base)
    before = {path.name: path.read_bytes() for path in folder.iterdir()}
    monkeypatch.setattr(convert, "convert", lambda *_: pytest.fail("weights were converted"))
    gguf_file.check_tokens(trained, GGUF_MODEL, parity.PROBES)
    assert {path.name: path.read_bytes() for path in folder.iterdir()} == before

    # the converter writes no normalizer, so its file differs from what training sees
    tokenizer = tiny_tokenizer()
    tokenizer.backend_tokenizer.normalizer = normalizers.Lowercase()
    monkeypatch.setattr(gguf_file, "load_tokenizer", lambda _: tokenizer)
    with pytest.raises(ModelError, match=r"has tokens that differ from training: .*in llama\.cpp"):
        gguf_file.check_tokens(trained, GGUF_MODEL, parity.PROBES)

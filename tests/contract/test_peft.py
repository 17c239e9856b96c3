"""PEFT, where it depends on its version: the questions by which it finds bitsandbytes, and that an
unquantised base never loads it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.models.tiny_models import tiny_base
from thumbwheel.engine.libraries import QUESTIONS

ADVICE = "bitsandbytes is kept out of our processes by it: correct engine/libraries.py"
AFTER_LOADING = """
import sys
from thumbwheel.engine.libraries import load_libraries
load_libraries()
import peft
print(*sys.modules, file=open(sys.argv[1], "w"))
"""
ORDERS = """
from thumbwheel.engine.load import LoraSettings, attach_lora, load_base
kinds = []
for quantization in sys.argv[3:]:
    model, _ = load_base(sys.argv[2], "float32", quantization=quantization)
    adapted, names = attach_lora(model, LoraSettings(rank=2))
    kinds.append(type(adapted.get_submodule(names[0])).__name__)
    loaded = "bitsandbytes" in sys.modules
    assert loaded or quantization == "none"
    assert not loaded or set(sys.argv[3:]) != {"none"}
print(*kinds)
"""


@pytest.mark.parametrize("question", QUESTIONS)
def test_peft_asks_once_whether_bitsandbytes_is_there(question: str) -> None:
    import peft
    from peft import import_utils

    function = getattr(import_utils, question, None)
    assert function is not None, f"PEFT {peft.__version__} has no {question}(); {ADVICE}"
    keeps = hasattr(function, "cache_clear")
    assert keeps, f"PEFT {peft.__version__} does not keep the answer of {question}(); {ADVICE}"


def in_a_process(code: str, *arguments: str) -> str:
    command = [sys.executable, "-c", code, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.slow
def test_the_libraries_of_a_model_come_without_what_no_run_needs(tmp_path: Path) -> None:
    """Code of users in the same process has it all the same, and other libraries find it."""
    pytest.importorskip("bitsandbytes")
    names = tmp_path / "names"
    later = (
        "import accelerate.utils, transformers.utils\n"
        "assert transformers.utils.is_bitsandbytes_available()\n"
        "assert accelerate.utils.is_bnb_available()\n"
        "assert peft.__spec__.loader is peft.__loader__ and 'Source' in repr(peft.__loader__)\n"
        "import bitsandbytes; bitsandbytes.nn.Linear4bit\n"
        "assert transformers.utils.is_scipy_available()\n"
        "import scipy.optimize; scipy.optimize.linear_sum_assignment\n"
    )
    in_a_process(AFTER_LOADING + later, str(names))
    loaded = set(names.read_text().split())
    assert "peft" in loaded and "bitsandbytes" not in loaded, f"PEFT imports it again; {ADVICE}"
    assert "scipy.optimize" not in loaded, "transformers imports it for every model again"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("order", "kinds"),
    [
        (["none"], ["Linear"]),
        (["nf4", "none"], ["Linear4bit", "Linear"]),
        (["none", "nf4", "int8"], ["Linear", "Linear4bit", "Linear8bitLt"]),
    ],
)
def test_quantised_bases_get_their_own_layers_in_any_order(
    order: list[str], kinds: list[str], tmp_path: Path
) -> None:
    pytest.importorskip("bitsandbytes")
    base = tiny_base(tmp_path / "base", hidden_size=64, intermediate_size=128, head_dim=16)
    code = AFTER_LOADING + ORDERS
    assert in_a_process(code, str(tmp_path / "names"), str(base), *order).split() == kinds


@pytest.mark.slow
def test_a_process_that_does_not_ask_for_it_has_peft_as_it_is() -> None:
    """An app that imports our engine, or its own PEFT, keeps PEFT's support of bitsandbytes."""
    pytest.importorskip("bitsandbytes")
    in_a_process(
        "import thumbwheel.engine.load, thumbwheel.evaluation.local_model\n"
        "from peft.import_utils import is_bnb_available\n"
        "assert is_bnb_available()"
    )

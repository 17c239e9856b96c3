"""Every method has a page: its settings are the settings, its metrics those of a run. The snippets
run in tests/e2e/test_docs.py."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.models.tiny_models import tiny_base
from tests.training_rows import assembled, loop_of, plain_rows
from thumbwheel.training.algorithms import ALGORITHMS

PAGES = Path(__file__).parents[2] / "docs" / "methods"
ROW = re.compile(r"^\| (`[^|]+) \|([^|]*)\|", re.MULTILINE)


def section(page: str, title: str) -> str:
    return page.split(f"## {title}\n")[1].split("\n## ")[0]


@pytest.mark.parametrize("name", ALGORITHMS.names())
def test_a_method_has_a_page_with_its_true_defaults(name: str) -> None:
    page = (PAGES / f"{name}.md").read_text()
    for title in ("Try it", "Settings", "Metrics", "When it goes wrong"):
        assert f"## {title}\n" in page
    fields = ALGORITHMS.get(name).Config.model_fields
    rows = ROW.findall(section(page, "Settings"))
    assert rows
    for setting, default in rows:
        field = fields[setting.strip("`")]
        shown_default = {None: "unset", (): "none"}.get(field.default, str(field.default))
        assert shown_default == default.strip(), (
            f"{setting}: the page says {default.strip()}, the default is {field.default}"
        )


def test_every_page_is_of_a_method() -> None:
    assert {path.stem for path in PAGES.glob("*.md")} <= set(ALGORITHMS.names())


@pytest.fixture(scope="module")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_base(tmp_path_factory.mktemp("base"), initializer_range=0.1)


@pytest.mark.parametrize("name", ALGORITHMS.names())
def test_a_page_explains_every_metric_that_a_run_logs(
    name: str, tiny_model: Path, tmp_path: Path
) -> None:
    shape = ALGORITHMS.get(name).shape(ALGORITHMS.get(name).Config())
    sampled = {
        "max_completion_length": 6,
        "num_generations": 3,
        "reward_workers": 1,
        "critic_warmup_steps": 0,
        "kl_budget": 9.0,
    }
    fields = ALGORITHMS.get(name).Config.model_fields
    assembly = assembled(
        name,
        tiny_model,
        tmp_path,
        plain_rows(shape, 8, 4),
        **{key: value for key, value in sampled.items() if key in fields},
    )
    loop = loop_of(assembly, tmp_path)
    loop.run()
    assembly.runner.close()
    logged = {key.removeprefix("eval_") for line in loop.state.log_history for key in line} - {
        "step",
        "epoch",
        "runtime",
    }
    pages = section((PAGES / f"{name}.md").read_text(), "Metrics") + section(
        (PAGES.parent / "30-operations.md").read_text(), "Metrics"
    )
    mentioned = re.findall(r"`([^`]+)`", pages)
    patterns = [re.escape(metric).replace("NAME", "[^/]+") for metric in mentioned]
    assert not [
        metric
        for metric in sorted(logged)
        if not any(re.fullmatch(pattern, metric) for pattern in patterns)
    ]

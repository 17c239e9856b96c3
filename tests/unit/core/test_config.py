"""Settings from file, environment and options; unknown keys; generated options."""

from __future__ import annotations

from datetime import date
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
import typer
from pydantic import model_validator
from typer.testing import CliRunner

from thumbwheel.core.config import Config, Home, Sources, build, check_sections, options
from thumbwheel.core.errors import ConfigError


class Parts(Config):
    dev: float = 0.1
    """A share."""

    @model_validator(mode="after")
    def _leave_something(self) -> Parts:
        if self.dev >= 1:
            raise ValueError("nothing is left")
        return self


class Inner(Config):
    depth: int = 1
    """How deep."""


class Sample(Config):
    rate: float = 0.5
    """How fast."""
    mode: Literal["slow", "fast"] = "slow"
    """Which way."""
    tags: tuple[str, ...] = ()
    """Several words."""
    loud: bool = False
    """Whether to shout."""
    limit: int | None = None
    """At most this many."""
    asked: tuple[Literal["thumb", "rating"], ...] = ("thumb",)
    """What is asked."""
    due: date | None = None
    """A day."""
    inner: Inner = Inner()
    """Not an option."""


def sources(file: dict[str, Any], **environment: str) -> Sources:
    return Sources(file, "test.yaml", environment)


def test_options_win_over_environment_over_file_over_default() -> None:
    read = sources(
        {"train": {"x": {"rate": 0.1, "mode": "fast", "limit": 3}}},
        THUMBWHEEL_TRAIN__X__RATE="0.2",
        THUMBWHEEL_TRAIN__X__LIMIT="4",
    )
    settings = read.load(Sample, "train.x", {"rate": 0.3, "limit": None})
    assert (settings.rate, settings.mode, settings.limit, settings.loud) == (
        0.3,
        "fast",
        None,
        False,
    )
    assert read.load(Sample, "train.x").limit == 4


def test_an_unknown_key_names_the_nearest() -> None:
    with pytest.raises(ConfigError, match=r"'rat'.*no such setting.*Did you mean 'rate'"):
        sources({"a": {"rat": 1}}).load(Sample, "a")
    with pytest.raises(ConfigError, match=r"inner.dept.*Did you mean 'depth'"):
        sources({"a": {"inner": {"dept": 1}}}).load(Sample, "a")


@pytest.mark.parametrize("value", ["fast", float("nan"), [1]])
def test_a_bad_value_is_said_with_its_key(value: object) -> None:
    with pytest.raises(ConfigError, match="'rate' = "):
        sources({"a": {"rate": value}}).load(Sample, "a")


def test_settings_that_contradict_each_other_are_said() -> None:
    with pytest.raises(ConfigError, match=r"settings = \{'dev': 2.0\} in a .*nothing is left"):
        sources({"a": {"dev": 2.0}}).load(Parts, "a")


def test_a_section_that_nothing_reads_is_refused() -> None:
    classes = {"train.x": Sample}
    check_sections(sources({"train": {"x": {"rate": 1}}}), classes)
    with pytest.raises(ConfigError, match=r"'train\.y'.*no such section"):
        check_sections(sources({"train": {"y": {}}}), classes)
    with pytest.raises(ConfigError, match="no such setting"):
        check_sections(sources({"train": {"x": {"speed": 1}}}), classes)


@pytest.mark.parametrize("text", ["- 1", "a: [", "\xff"])
def test_a_broken_file_is_an_error(tmp_path: Path, text: str) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(text, encoding="latin-1")
    with pytest.raises(ConfigError, match="configuration file"):
        Sources.read(path)


def test_generated_options_carry_help_and_defaults() -> None:
    app = typer.Typer()
    seen: list[dict[str, Any]] = []

    @app.command()
    @options(Sample)
    def run(name: Annotated[str, typer.Option()] = "x", *, options: dict[str, Any]) -> None:
        seen.append({"name": name, **options})

    shown = CliRunner().invoke(app, ["--help"], env={"COLUMNS": "200"}).output
    assert "How fast. (default: 0.5)" in shown and "slow" in shown and "--inner" not in shown
    assert CliRunner().invoke(app, ["--rate", "0.9", "--mode", "fast", "--loud"]).exit_code == 0
    assert seen.pop() == {"name": "x", "rate": 0.9, "mode": "fast", "loud": True}
    assert CliRunner().invoke(app, ["--tags", "a", "--tags", "b"]).exit_code == 0
    assert seen.pop() == {"name": "x", "tags": ["a", "b"]}
    assert CliRunner().invoke(app, ["--asked", "rating", "--due", "2026-12-24"]).exit_code == 0
    on_command_line = seen.pop()
    del on_command_line["name"]
    assert build(Sample, on_command_line, "options") == Sample(
        asked=("rating",), due=date(2026, 12, 24)
    )
    assert CliRunner().invoke(app, ["--asked", "sideways"]).exit_code == 2
    assert CliRunner().invoke(app, ["--mode", "sideways"]).exit_code == 2


def test_a_home_that_cannot_be_made_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ConfigError, match="home"):
        Home.at(tmp_path / "file" / "below").prepare()


def test_the_home_follows_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("THUMBWHEEL_HOME", str(tmp_path / "h"))
    assert Home.at().path == tmp_path / "h"
    assert Home.at(tmp_path / "other").path == tmp_path / "other"

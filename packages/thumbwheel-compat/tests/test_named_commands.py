"""Commands that docs/40-migrating.md names for a capability, run as they stand there, with their
results checked. Names such as A and FILE are replaced, and an output as JSON is asked for."""

from __future__ import annotations

import json
import shlex
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from test_migrating import WORDS
from tests.command_line import Run
from tests.models.tiny_models import tiny_base

Named = Callable[..., Any]
LIKED, DISLIKED, UNRATED = 60, 20, 10


def write_lines(path: Path, rows: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))


@pytest.fixture
def named(command_line: Run, tmp_path: Path) -> Named:
    """Return a function that runs a command of the page and returns its JSON. Agent support has
    three times as many liked answers as disliked ones, and some that nobody rated."""
    rows: list[dict[str, Any]] = []
    for number in range(LIKED + DISLIKED + UNRATED):
        name = f"t{number}"
        liked = number < LIKED
        answer = "It is open." if liked else "No idea."
        rows.append({"type": "trace", "id": name, "input": f"Case {number}?", "output": answer})
        if number < LIKED + DISLIKED:
            thumb = {"type": "feedback", "kind": "thumb", "value": liked, "rater": "ann"}
            rows.append(thumb | {"target": {"trace": name}})
    write_lines(tmp_path / "world.jsonl", rows)
    assert command_line("import", "jsonl", "world.jsonl", "--agent", "support")[0] == 0

    def run(command: str, **names: str) -> Any:
        assert command in WORDS, f"the page does not name {command}"
        values = {"A": "support"} | names
        arguments = [values.get(part, part) for part in shlex.split(command)[1:]]
        code, out, err = command_line(*arguments, "--json")
        assert code == 0, (command, err)
        return json.loads(out)

    return run


def train_rows(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "train.jsonl").read_text().splitlines()]


class TestDatasets:
    def test_labels_are_balanced(self, named: Named, command_line: Run, tmp_path: Path) -> None:
        balanced = named("thumbwheel dataset build --agent A --shape labels --balance downsample")
        export = "thumbwheel dataset export DATASET --agent A --format jsonl --to FOLDER"
        named(export, DATASET=balanced["id"], FOLDER="rows")
        labels = Counter(row["label"] for row in train_rows(tmp_path / "rows"))
        assert labels[True] == labels[False] > 0
        # without the option no row is thrown away
        whole = named("thumbwheel dataset build --agent A --method kto")
        assert whole["shape"] == "labels"
        assert sum(whole["manifest"]["counts"].values()) == LIKED + DISLIKED
        weights = whole["manifest"]["fitted"]["class_weights"]
        assert weights["undesirable"] > weights["desirable"]

    def test_a_limit_is_one_of_training_rows(self, named: Named) -> None:
        limited = named("thumbwheel dataset build --agent A --shape labels --limit 10000")
        assert sum(limited["manifest"]["counts"].values()) == LIKED + DISLIKED

    def test_a_dataset_is_described(self, named: Named) -> None:
        built = named("thumbwheel dataset build --agent A --shape labels")
        shown = named("thumbwheel dataset show DATASET --agent A", DATASET=built["id"])
        assert shown["manifest"] == built["manifest"]
        assert shown["manifest"]["origins"] == {"upvote": LIKED, "downvote": DISLIKED}
        health = named("thumbwheel dataset health DATASET --agent A", DATASET=built["id"])
        findings = {finding["check"]: finding["text"] for finding in health["findings"]}
        assert findings["balance"].endswith("% of the training labels are undesirable")

    @pytest.mark.parametrize("form", ["json", "hf"])
    def test_files_hold_the_rows_of_every_split(
        self, named: Named, tmp_path: Path, form: str
    ) -> None:
        built = named("thumbwheel dataset build --agent A --shape labels")
        export = f"thumbwheel dataset export DATASET --agent A --format {form} --to FOLDER"
        named(export, DATASET=built["id"], FOLDER="rows")
        counts = built["manifest"]["counts"]
        if form == "json":
            splits = {
                name: json.loads((tmp_path / f"rows/{name}.json").read_text()) for name in counts
            }
        else:
            datasets = pytest.importorskip("datasets")
            splits = dict(datasets.load_from_disk(str(tmp_path / "rows")))
        assert {name: len(rows) for name, rows in splits.items()} == counts
        assert {"prompt", "completion", "label"} <= set(splits["train"][0])

    def test_prompts_need_no_feedback(self, named: Named) -> None:
        prompts = named("thumbwheel dataset build --agent A --shape prompts")
        assert sum(prompts["manifest"]["counts"].values()) == LIKED + DISLIKED + UNRATED

    def test_scores_are_put_on_the_scale_of_the_training_rows(
        self, named: Named, tmp_path: Path
    ) -> None:
        rows = [
            {"prompt": f"Case {n}?", "response": f"Answer {n}.", "score": 0.5 + (n % 5) * 0.1}
            for n in range(60)
        ]
        (tmp_path / "scores.json").write_text(json.dumps(rows))
        imported = named("thumbwheel import n3 FILE --agent A", FILE="scores.json", A="scored")
        assert imported["refused"] == 0
        build = "thumbwheel dataset build --agent A --shape scored --normalise range"
        built = named(build, A="scored")
        export = "thumbwheel dataset export DATASET --agent A --format jsonl --to FOLDER"
        named(export, DATASET=built["id"], FOLDER="rows", A="scored")
        values = [row["value"] for row in train_rows(tmp_path / "rows")]
        assert (min(values), max(values)) == pytest.approx((-1, 1))


class TestRewards:
    def test_weights_are_tried_on_the_stored_rewards(self, named: Named) -> None:
        ran = named("thumbwheel reward run --agent A")
        assert ran["components"]["thumb"]["statuses"]["ok"] == LIKED + DISLIKED
        listed = named("thumbwheel reward list --agent A")
        assert listed["components"]["thumb"]["mean"] == LIKED / (LIKED + DISLIKED)
        explained = named("thumbwheel reward explain TRACE --agent A", TRACE="t0")
        assert explained["reward"] == 1.0
        weights = "thumbwheel reward reweight --agent A --weight decision=2 --weight thumb=0"
        without = named(weights)
        assert (without["before"]["n"], without["after"]["n"]) == (LIKED + DISLIKED, 0)
        old = named("thumbwheel reward reweight --agent A --preset isaa")
        assert "format_compliance" in old["not_run_yet"]

    def test_shares_of_positive_feedback_by_month(self, named: Named) -> None:
        (month,) = named("thumbwheel feedback stats --agent A --period month")["over_time"]
        assert (month["judged"], month["people"]) == (LIKED + DISLIKED, 1)
        assert month["share_positive"] == LIKED / (LIKED + DISLIKED)

    def test_labels_are_learned_and_suggested(self, named: Named, tmp_path: Path) -> None:
        learned = named("thumbwheel label learn --agent A --out FILE", FILE="patterns.json")
        assert (learned["report"]["good"], learned["report"]["bad"]) == (LIKED, DISLIKED)
        assert (tmp_path / "patterns.json").is_file()
        suggested = named("thumbwheel label suggest --agent A")
        assert suggested["new"] == UNRATED

    def test_what_nobody_rated_becomes_a_queue(self, named: Named, command_line: Run) -> None:
        named("thumbwheel queue create july --agent A --unrated")
        code, out, err = command_line("queue", "show", "july", "--agent", "support", "--json")
        assert code == 0, err
        assert UNRATED in json.loads(out).values(), out


class TestOperations:
    def test_a_loop_says_what_it_waits_for(self, named: Named) -> None:
        enabled = named("thumbwheel loop enable --agent A --least 100")
        assert enabled["enabled"] and enabled["settings"]["least"] == 100
        assert enabled["new"]["events"] == LIKED + DISLIKED
        assert enabled["verdict"]["fired"] is False

    def test_cases_of_a_file(self, named: Named, command_line: Run, tmp_path: Path) -> None:
        case = {"input": "Open?", "reference": {"open": True}, "checker": "json_fields"}
        (tmp_path / "cases.json").write_text(json.dumps([case, case | {"input": "Closed?"}]))
        named("thumbwheel case add --agent A --file FILE", FILE="cases.json")
        code, out, err = command_line("case", "list", "--agent", "support", "--json")
        assert code == 0, err
        assert "Open?" in out and "Closed?" in out

    def test_a_nightly_import_is_planned(self, named: Named, command_line: Run) -> None:
        # the page names it in a note
        schedule = (
            'thumbwheel schedule add nightly --agent A --cron "0 3 * * *" --job import '
            "--set source=decisions"
        )
        arguments = ["support" if part == "A" else part for part in shlex.split(schedule)[1:]]
        code, _, err = command_line(*arguments)
        assert code == 0, err
        listed = command_line("schedule", "list", "--json")[1]
        assert '"0 3 * * *"' in listed and '"decisions"' in listed

    def test_the_table_is_looked_at_before_it_is_imported(
        self, named: Named, command_line: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        row = {
            "id": "d1",
            "agentType": "FILER",
            "state": {"item": {"title": "Bank"}},
            "action": {"swimlane": "HOME"},
            "userFeedback": "CONFIRMED",
        }
        write_lines(tmp_path / "decisions.jsonl", [row])
        monkeypatch.setenv("DATABASE_URL", str(tmp_path / "decisions.jsonl"))
        looked = named("thumbwheel import decisions --agent A --dry-run", A="filer")
        assert (looked["read"], looked["refused"]) == (1, 0)
        # a dry run stores nothing, so the import finds no duplicate
        code, out, err = command_line("import", "decisions", "--agent", "filer", "--json")
        assert code == 0, err
        assert (json.loads(out)["duplicates"], json.loads(out)["refused"]) == (0, 0)


class TestSettingsOfTraining:
    """A dry run of each line: the settings are those of the run, and nothing is trained."""

    @pytest.fixture
    def base(self, tmp_path: Path) -> Path:
        return tiny_base(tmp_path / "base")

    @pytest.mark.slow
    def test_lora_and_checkpointing(self, command_line: Run, named: Named, base: Path) -> None:
        def parameters(*more: str) -> int:
            line = "thumbwheel train kto --agent A --base BASE --lora-r 8 --lora-alpha 16"
            command = f"{line} --gradient-checkpointing"
            assert command in WORDS
            arguments = ["train", "kto", "--agent", "support", "--base", str(base)]
            settings = shlex.split(command)[7:]
            code, out, err = command_line(*arguments, *settings, *more, "--dry-run", "--json")
            assert code == 0, err
            count: int = json.loads(out)["trainable_parameters"]
            return count

        assert parameters("--lora-r", "16") == 2 * parameters()

    @pytest.mark.slow
    def test_epochs_and_rows_of_a_step(
        self, command_line: Run, named: Named, base: Path, tmp_path: Path
    ) -> None:
        pairs = [
            {
                "prompt": f"How is pump {number}?",
                "chosen": "kpi (normal)",
                "rejected": "trend (normal)",
            }
            for number in range(40)
        ]
        write_lines(tmp_path / "pairs.jsonl", pairs)
        assert command_line("import", "preference", "pairs.jsonl", "--agent", "widgets")[0] == 0
        command = (
            "thumbwheel train dpo --agent A --base BASE --num-train-epochs 3 --batch-size 4 "
            "--learning-rate 5e-5 --lora-r 16 --lora-alpha 32 --beta 0.1"
        )
        assert command in WORDS
        values = {"A": "widgets", "BASE": str(base)}
        arguments = [values.get(part, part) for part in shlex.split(command)[1:]]
        code, out, err = command_line(*arguments, "--dry-run", "--json")
        assert code == 0, err
        plan = json.loads(out)
        assert plan["steps"] == -(-plan["rows"] // 4) * 3
        assert list((tmp_path / "home" / "runs").glob("*")) == [], "nothing is trained"

"""Commands that docs/40-migrating.md names for a capability, run as they stand there, with their
results checked. Names such as A and FILE are replaced, and an output as JSON is asked for."""

from __future__ import annotations

import io
import json
import shlex
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from test_migrating import WORDS
from tests.command_line import Run
from tests.models.tiny_models import tiny_base
from tests.worlds.experiment_world import experiment_world
from tests.worlds.gateway_world import AGENT
from thumbwheel.db.schema import model_versions

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
        assert code == 0, f"{command}\n{out}\n{err}"
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
        assert suggested["new"] == suggested["unlabelled"] == UNRATED

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

    def test_a_version_that_is_not_approved_may_be_an_arm(
        self, command_line: Run, tmp_path: Path
    ) -> None:
        command = "thumbwheel experiment start --agent A --arm VERSION --arm VERSION"
        assert {command, f"{command} --unproved"} <= set(WORDS)
        with experiment_world(tmp_path / "world") as world:
            candidate = (
                model_versions.update()
                .where(model_versions.c.number == 1)
                .values(adapter="0" * 64, state="candidate", basis=None)
            )
            world.ws.db.write(lambda connection: connection.execute(candidate))
            start = ("--home", str(world.ws.home.path), "experiment", "start", "--agent", AGENT)
            arms = ("--arm", "v0", "--arm", "v1")
            code, _, err = command_line(*start, *arms)
            assert code == 3 and "candidate" in err
            code, out, err = command_line(*start, *arms, "--unproved", "--json")
            assert code == 0, err
            assert json.loads(out)["plan"]["config"]["share"] == 0.1

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


class TestAnswersToOneQuestion:
    """Two answers to each of thirty questions, one liked and one disliked, and what they become."""

    @pytest.fixture(autouse=True)
    def _answers(self, command_line: Run, tmp_path: Path) -> None:
        rows: list[dict[str, Any]] = []
        for number in range(60):
            tag = "perfect" if number % 4 < 2 else "data-mismatch"
            answer = "In the folder." if number % 2 == 0 else "No idea."
            trace = {"type": "trace", "id": f"a{number}", "input": f"Where is {number // 2}?"}
            thumb = {"type": "feedback", "kind": "thumb", "value": number % 2 == 0, "rater": "ann"}
            rows.append(trace | {"output": answer})
            rows.append(thumb | {"target": {"trace": f"a{number}"}, "metadata": {"tags": [tag]}})
        write_lines(tmp_path / "answers.jsonl", rows)
        assert command_line("import", "jsonl", "answers.jsonl", "--agent", "answers")[0] == 0

    def rows(self, built: dict[str, Any]) -> int:
        return sum(built["manifest"]["counts"].values())

    def test_shapes(self, named: Named) -> None:
        pairs = named("thumbwheel dataset build --agent A --shape pairs", A="answers")
        assert (pairs["shape"], self.rows(pairs)) == ("pairs", 30)
        groups = named("thumbwheel dataset build --agent A --shape groups", A="answers")
        assert (groups["shape"], self.rows(groups)) == ("groups", 30)

    def test_ratings_are_filtered_by_their_tags(self, named: Named) -> None:
        command = (
            "thumbwheel dataset build --agent A --shape pairs --min-confidence 0.5 "
            "--without-tag data-mismatch"
        )
        assert self.rows(named(command, A="answers")) == 15

    def test_a_plan_says_what_there_is(self, named: Named) -> None:
        plan = named("thumbwheel dataset plan --agent A", A="answers")
        rows = {shape: sum(part["counts"].values()) for shape, part in plan["shapes"].items()}
        assert (rows["pairs"], rows["labels"]) == (30, 60)

    def test_the_ledger_may_decide(self, named: Named) -> None:
        named("thumbwheel reward run --agent A", A="answers")
        for command in (
            "thumbwheel dataset build --agent A --shape pairs --reward ledger",
            "thumbwheel dataset build --agent A --method dpo --reward ledger",
        ):
            built = named(command, A="answers")
            assert (built["shape"], self.rows(built)) == ("pairs", 30), command

    def test_nothing_waits_for_a_reward(self, named: Named) -> None:
        named("thumbwheel reward run --agent A", A="answers")
        pending = named("thumbwheel reward pending --agent A", A="answers")
        assert all(component["judged"] == 0 for component in pending["components"].values())


class TestDecisions:
    def test_rewards_and_feedback_are_asked_for(
        self, named: Named, command_line: Run, tmp_path: Path
    ) -> None:
        words = ("CONFIRMED", "OVERRIDDEN", "OVERRIDDEN", None)
        rows = []
        for number in range(60):
            row = {
                "id": f"d{number}",
                "agentType": "FILER",
                "state": {"item": {"title": f"Mail {number}"}},
                "action": {"swimlane": "HOME", "priority": "LOW"},
                "userFeedback": words[number % 4],
                "reward": (1.0, -0.8, -3.0, 0.5)[number % 4],
                "userId": "ann",
            }
            rows.append(row)
        write_lines(tmp_path / "table.jsonl", [*rows, rows[0] | {"id": "x", "agentType": "STORER"}])
        command = "thumbwheel import decisions URL --agent A --agent-type FILER"
        imported = named(command, URL="table.jsonl", A="filer")
        assert (imported["records"]["trace"], sum(imported["left_out"].values())) == (60, 1)
        build = (
            "thumbwheel dataset build --agent A --shape labels --limit 1000 --min-reward -2.0 "
            "--require-feedback"
        )
        built = named(build, A="filer")
        # fifteen have a reward below -2, and fifteen no feedback
        assert sum(built["manifest"]["counts"].values()) == 30

        # an overridden decision without a correction is no case, and would be refused
        confirmed = [row for row in rows if row["userFeedback"] == "CONFIRMED"]
        write_lines(tmp_path / "reviewed.jsonl", confirmed)
        cases = "thumbwheel import decisions FILE --agent A --agent-type FILER --gold"
        gold = named(cases, FILE="reviewed.jsonl", A="tests")
        assert gold["cases"] == 15


class TestCollectedFeedback:
    def test_lines_of_the_collector(self, named: Named, tmp_path: Path) -> None:
        line = {
            "query": "Open?",
            "response": "Nine to five.",
            "feedback_type": "thumbs_up",
            "rating": None,
            "correction": None,
            "timestamp": "2026-01-05 09:12:44.120000",
            "metadata": {"user_id": "ann"},
        }
        write_lines(tmp_path / "feedback.jsonl", [line, line | {"query": "Sunday?"}])
        command = "thumbwheel import feedback_jsonl FILE --agent A"
        imported = named(command, FILE="feedback.jsonl", A="plan")
        assert (imported["records"]["trace"], imported["records"]["thumb"]) == (2, 2)

    def test_the_plans_settings_are_converted(self, named: Named, tmp_path: Path) -> None:
        (tmp_path / "rlhf.yaml").write_text(
            "rlhf:\n  enabled: true\n  feedback:\n    collection_rate: 0.3\n"
            "  ppo:\n    training:\n      kl_coef: 0.2\n"
            "  continuous_learning:\n    enabled: true\n    train_threshold: 100\n"
        )
        converted = named("thumbwheel settings convert FILE --agent A", FILE="rlhf.yaml")
        settings = converted["settings"]
        assert settings["training"] == {"enabled": True}
        assert settings["gateway"]["agents"]["support"] == {"record": 0.3}
        assert settings["train"]["ppo"] == {"init_kl_coef": 0.2}
        assert converted["commands"] == ["thumbwheel loop enable --agent support --least 100"]

    def test_an_answer_is_reviewed_at_the_terminal(
        self, named: Named, command_line: Run, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        assert "thumbwheel label review --agent A --rater ann" in WORDS
        named("thumbwheel label suggest --agent A")
        monkeypatch.setattr(sys, "stdin", io.StringIO("y\nn\nq\n"))
        review = ("label", "review", "--agent", "support", "--rater", "ann")
        code, out, err = command_line(*review, "--json")
        assert code == 0, err
        done = json.loads(out.splitlines()[-1])["done"]
        assert sum(done.values()) == 2
        again = named("thumbwheel label suggest --agent A")
        assert again["unlabelled"] == UNRATED - 2


class TestWidgets:
    def test_variations_are_generated_and_ratings_filtered(
        self, named: Named, tmp_path: Path
    ) -> None:
        (tmp_path / "catalog.json").write_text('{"kpi": {"dial": "a dial", "bar": "a bar"}}')
        (tmp_path / "run1").mkdir()
        out = "run1/exhaustive_data.json"
        generate = "thumbwheel widgets generate CATALOGUE --out FILE"
        generated = named(generate, CATALOGUE="catalog.json", FILE=out)
        entries = json.loads((tmp_path / out).read_text())["entries"]
        assert generated["entries"] == len(entries) == 2 * 4
        ratings = {
            entries[0]["entry_id"]: {"rating": "up", "tags": ["perfect"]},
            entries[1]["entry_id"]: {"rating": "down", "tags": ["data-mismatch"]},
        }
        (tmp_path / "run1" / "ratings.json").write_text(json.dumps({"ratings": ratings}))
        command = (
            "thumbwheel import widgets FOLDER --agent A --min-confidence 0.5 "
            "--without-tag data-mismatch"
        )
        imported = named(command, FOLDER="run1", A="panel")
        assert imported["records"]["trace"] == 8
        assert imported["records"]["thumb"] == 1
        assert imported["left_out"] == {"its rating has the tag 'data-mismatch'": 1}


class TestAround:
    """What a user of any of the systems asks of the machine and of who may come in."""

    def test_keys_and_users(
        self, named: Named, command_line: Run, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        key = named("thumbwheel keys add NAME --agent A", NAME="app")
        assert key["secret"] and key["grants"] == {"support": ["call", "rate"]}
        monkeypatch.setattr(sys, "stdin", io.StringIO("a long password of ann\n"))
        user = named("thumbwheel users add ann --agent A --role rater")
        assert user["name"] == "ann"
        assert "rater" in json.dumps(user)

    def test_the_machine(self, named: Named) -> None:
        machine = named("thumbwheel hardware")
        text = json.dumps(machine)
        assert "threads" in text and "ram_gb" in text
        tools = json.dumps(named("thumbwheel tools list"))
        assert "converter" in tools and "llama-server" in tools

    def test_jobs(self, named: Named, command_line: Run) -> None:
        assert named("thumbwheel jobs list")["jobs"] == []


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

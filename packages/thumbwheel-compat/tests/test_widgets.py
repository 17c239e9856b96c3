"""Rated widgets: every form of the two files, ratings that belong to their run, siblings that share
a prompt."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.command_line import Run
from thumbwheel.app.open import opener
from thumbwheel.capture.ingest import ingest
from thumbwheel.compat.command_center.source import SOURCE, prompt_of
from thumbwheel.core.errors import InputError
from thumbwheel.datasets.build import build, load_rows
from thumbwheel.datasets.types import DatasetConfig
from thumbwheel.importers.source import Line, Refused
from thumbwheel.importers.types import FeedbackRecord, TraceRecord
from thumbwheel.models.types import Agent
from thumbwheel.rewards.label import judgements


def entry(number: int, fixture: str, rating: str | None = None, **more: Any) -> dict[str, Any]:
    """A fixture to judge; natural=True makes it a choice of the model too."""
    return {
        "entry_id": f"e{number:05}",
        "question_id": "q001",
        "question": "How is pump 4?",
        "category": "status",
        "scenario": "kpi",
        "fixture": fixture,
        "size": "normal",
        "natural": False,
        "forced": False,
        "pipeline_selected_fixture": fixture,
        "widget_index": 0,
        "data_override": {"demoData": {"label": "Flow", "value": 3}, "config": {"title": "Pump 4"}},
        "rating": rating,
        "tags": [],
        "notes": "",
        **more,
    }


def run_file(
    folder: Path,
    entries: list[dict[str, Any]],
    run: str = "r1",
    created_at: str = "2026-02-01T12:46:06",
) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "exhaustive_data.json"
    path.write_text(
        json.dumps(
            {"run_id": run, "created_at": created_at, "total_questions": 1, "entries": entries},
            indent=2,
        )
    )
    return path


def rate(rating: str | None, rated_at: str = "2026-02-02T10:00:00", **more: Any) -> dict[str, Any]:
    return {"rating": rating, "tags": ["relevant"], "notes": "n", "rated_at": rated_at, **more}


def read(path: Path) -> tuple[list[TraceRecord], list[FeedbackRecord], list[str]]:
    items = list(SOURCE.read(path, lambda position: None))
    all_records = [record for item in items if isinstance(item, Line) for record in item.records]
    return (
        [record for record in all_records if isinstance(record, TraceRecord)],
        [record for record in all_records if isinstance(record, FeedbackRecord)],
        [item.reason for item in items if isinstance(item, Refused)],
    )


def test_the_forms_of_the_data_are_one(tmp_path: Path) -> None:
    entries = [entry(1, "dial", "up"), entry(2, "bar", "down"), entry(3, "plain")]
    whole = run_file(tmp_path / "a", entries)
    copy = tmp_path / "b.json"
    copy.write_text(json.dumps({"run_id": "r1", "entries": entries}))
    for path in (whole, copy, tmp_path / "a"):
        traces, thumbs, refused = read(path)
        assert [(trace.id, trace.output, trace.session) for trace in traces] == [
            ("r1:e00001", "dial", "question:q001"),
            ("r1:e00002", "bar", "question:q001"),
            ("r1:e00003", "plain", "question:q001"),
        ]
        assert [thumb.value for thumb in thumbs] == [True, False] and refused == []
        assert len({trace.input[0]["content"] for trace in traces}) == 1
    (text,) = {trace.input[0]["content"] for trace in traces}
    assert text.splitlines()[:7] == [
        "Scenario: kpi",
        "Query: How is pump 4?",
        "Size: normal",
        "Fixtures: bar, dial, plain",
        "Data.label: Flow",
        "Data.value: 3",
        "Title: Pump 4",
    ]


@pytest.mark.parametrize(
    "form",
    [
        lambda by_entry: {"exported_at": "x", "stats": {"total": 2}, "ratings": by_entry},
        lambda by_entry: by_entry,
        lambda by_entry: [{"entry_id": key, **rating} for key, rating in by_entry.items()],
    ],
)
def test_the_forms_of_the_ratings_are_one(tmp_path: Path, form: Any) -> None:
    run_file(tmp_path, [entry(1, "dial"), entry(2, "bar")])
    ratings = tmp_path / "widget_ratings_2026-02-02.json"
    ratings.write_text(
        json.dumps(
            form(
                {"e00001": rate("up"), "e00002": rate("down", device_id="d1"), "e00009": rate("up")}
            )
        )
    )
    for path in (ratings, tmp_path, tmp_path / "exhaustive_data.json"):
        _, thumbs, refused = read(path)
        assert [
            (thumb.targets[0].id, thumb.value, thumb.rater and thumb.rater.id) for thumb in thumbs
        ] == [
            ("r1:e00001", True, None),
            ("r1:e00002", False, "d1"),
        ]
        assert len(refused) == 1 and "e00009" in refused[0]
        assert (thumbs[0].comment, thumbs[0].metadata) == ("n", {"tags": ["relevant"]})


def test_golden_4b_a_liked_and_a_disliked_widget_of_a_question_are_a_pair(tmp_path: Path) -> None:
    meta = {
        "intent": {
            "type": "status",
            "domains": ["pumps"],
            "entities": {"pump": ["4"]},
            "confidence": 0.9,
        }
    }
    natural = {"natural": True, "pipeline_meta": meta}
    run_file(
        tmp_path,
        [
            entry(1, "dial", "up", **natural),
            entry(2, "line", "down", scenario="trend", **natural),
            entry(3, "list", "up", scenario="alerts", **natural),
            entry(4, "table", "down", scenario="alerts", **natural),
            entry(5, "sankey", "down", scenario="flow-sankey", forced=True),
        ],
    )
    with opener(tmp_path / "home", None, "warning")() as ws:
        assert ingest(ws, "desk", "widgets", tmp_path).refused == 0
        dataset = build(ws, "desk", "pairs", DatasetConfig(dev=0, gate=0))
        rows = {(row.chosen, row.rejected): row for row in load_rows(ws, dataset.id, "train")}
    widgets = (
        "kpi (normal)",
        "trend (normal)",
    )  # alerts were liked and disliked, and the flow was no choice
    assert rows.keys() == {widgets, ("list", "table")}
    assert rows[widgets].prompt[0]["content"].splitlines()[:4] == [
        "Query: How is pump 4?",
        "Scenarios: alerts, flow-sankey, kpi, trend",
        "Domains: pumps",
        "Entities: pump: 4",
    ]


def test_an_entry_that_does_not_say_what_was_asked_is_a_fixture_only(tmp_path: Path) -> None:
    path = run_file(
        tmp_path,
        [
            entry(1, "dial", natural=True, question=None),
            entry(2, "bar", natural=True, scenario=None),
            entry(3, "map"),
        ],
    )
    (tmp_path / "catalogue.json").write_text(json.dumps({"chatstream": "one"}))
    traces, _, _ = read(path)
    assert not [trace.id for trace in traces if trace.id and trace.id.endswith(":widget")]
    path = run_file(tmp_path, [entry(1, "dial", natural=True), entry(2, "bar", scenario=None)])
    assert (
        "Scenarios: chatstream, kpi\n"
        in next(trace for trace in read(path)[0] if trace.output == "kpi (normal)").input[0][
            "content"
        ]
    )


def test_ratings_beside_the_run_are_about_the_widget_too(tmp_path: Path) -> None:
    run_file(tmp_path, [entry(1, "dial", natural=True)])
    (tmp_path / "ratings.json").write_text(json.dumps({"e00001": rate("up")}))
    traces, thumbs, _ = read(tmp_path)
    assert [(trace.id, trace.output) for trace in traces] == [
        ("r1:e00001", "dial"),
        ("r1:e00001:widget", "kpi (normal)"),
    ]
    assert [(thumb.targets[0].id, thumb.value) for thumb in thumbs] == [
        ("r1:e00001", True),
        ("r1:e00001:widget", True),
    ]


def test_defect_4c2_only_down_is_a_dislike_and_forced_is_no_choice(tmp_path: Path) -> None:
    forced = entry(
        3, "bar", natural=False, forced=True, pipeline_selected_fixture=None, widget_index=-1
    )
    path = run_file(tmp_path, [entry(1, "dial", "sideways"), entry(2, "plain"), forced])
    traces, thumbs, refused = read(path)
    assert thumbs == [] and len(refused) == 1 and "sideways" in refused[0]
    assert [(trace.metadata or {})["forced"] for trace in traces] == [False, True]


def test_defect_4c3_entries_of_other_data_or_size_have_another_prompt() -> None:
    dial = entry(1, "dial")
    others = [
        {"size": "hero"},
        {"data_override": {"demoData": {"label": "Flow", "value": 4}}},
        {"question": "?"},
        {"scenario": "trend"},
    ]
    assert len({prompt_of(dial | other, {"dial": "", "bar": ""}) for other in ({}, *others)}) == 5
    assert prompt_of(
        dial | {"widget_index": 5, "fixture": "bar", "rating": "down"}, {"dial": "", "bar": ""}
    ) == prompt_of(dial, {"bar": "", "dial": ""})


def test_defect_4c4_a_catalogue_may_have_texts_for_single_fixtures(tmp_path: Path) -> None:
    path = run_file(tmp_path, [entry(1, "dial"), entry(2, "default-render", scenario="chatstream")])
    (tmp_path / "fixture_catalogue.json").write_text(
        json.dumps({"kpi": {"dial": "a dial", "bar": "a bar"}, "chatstream": "one"})
    )
    traces, _, _ = read(path)
    assert (
        "Fixtures: bar, dial" in traces[0].input[0]["content"]
        and "Fixtures: default-render" in traces[1].input[0]["content"]
    )


def test_defect_4c5_the_newest_rating_of_a_device_counts_and_devices_are_not_merged(
    tmp_path: Path,
) -> None:
    run_file(tmp_path, [entry(1, "dial", "up"), entry(2, "bar")])
    rows = [
        {"entry_id": "e00001", **rate("down", "2026-02-05T10:00:00")},
        {"entry_id": "e00002", **rate("up", "2026-02-04T10:00:00", device_id="a")},
        {"entry_id": "e00002", **rate("down", "2026-02-03T10:00:00", device_id="a")},
        {"entry_id": "e00002", **rate("down", "2026-02-03T10:00:00", device_id="b")},
        {"entry_id": "e00002", **rate("up", "2026-02-03T10:00:00", device_id="c")},
    ]
    (tmp_path / "ratings.json").write_text(json.dumps(rows))
    with opener(tmp_path / "home", None, "warning")() as ws:
        assert ingest(ws, "desk", "widgets", tmp_path / "exhaustive_data.json").refused == 0
        again = ingest(ws, "desk", "widgets", tmp_path)
        assert (again.stored, again.duplicates) == (0, 7)
        with ws.db.read() as connection:
            verdicts = sorted(
                (judgement.good, judgement.conflict, len(judgement.feedback_ids))
                for judgement in judgements(connection, Agent.named("desk"))
            )
    assert verdicts == [(False, False, 1), (True, True, 3)]


def test_defect_4c6_ratings_of_an_older_run_do_not_stick_to_other_widgets(tmp_path: Path) -> None:
    run_file(tmp_path, [entry(1, "dial")], "r2", "2026-03-01T00:00:00")
    (tmp_path / "ratings.json").write_text(
        json.dumps({"e00001": rate("up", "2026-02-02T10:00:00")})
    )
    _, thumbs, refused = read(tmp_path)
    assert thumbs == [] and "before this run" in refused[0]
    first_trace, second_trace = (
        read(run_file(tmp_path / name, [entry(1, "dial")], name))[0][0] for name in ("x", "y")
    )
    assert first_trace.external_id != second_trace.external_id
    alone = tmp_path / "alone"
    alone.mkdir()
    (alone / "ratings.json").write_text(json.dumps({"e00001": rate("up")}))
    with pytest.raises(InputError, match="begin anew"):
        read(alone / "ratings.json")


def test_without_a_run_id_the_content_is_the_name(tmp_path: Path) -> None:
    path = run_file(tmp_path, [entry(1, "dial", "up"), {"entry_id": "e2"}, 3])  # type: ignore[list-item]
    path.write_text(json.dumps({"entries": json.loads(path.read_text())["entries"]}))
    (tmp_path / "ratings.json").write_text(json.dumps({"e00001": rate("down")}))
    traces, thumbs, refused = read(path)
    assert (
        len(refused) == 2
        and {thumb.targets[0].id for thumb in thumbs} == {traces[0].external_id}
        and len(thumbs) == 2
    )


def test_defect_4c7_a_question_is_one_group(tmp_path: Path) -> None:
    first_trace, second_trace = (
        read(run_file(tmp_path / name, [entry(1, name)], name))[0][0] for name in ("x", "y")
    )
    assert first_trace.session == second_trace.session == "question:q001"


def test_an_answer_may_be_several_widgets(tmp_path: Path) -> None:
    meta = {
        "intent": {
            "domains": ["pumps"],
            "time_range": {"from": "Monday", "to": "Friday"},
            "confidence": 0.9,
        }
    }
    natural = {"natural": True, "pipeline_meta": meta}
    run_file(
        tmp_path,
        [
            entry(1, "dial", "up", **natural),
            entry(2, "line", scenario="trend", **natural),
            entry(3, "list", "down", scenario="alerts", **natural),
            entry(4, "map", "up", scenario="map", **natural, size="hero"),
            entry(5, "sankey", "down", scenario="flow", forced=True),
        ],
    )
    (tmp_path / "ratings.json").write_text(json.dumps({"e00002": rate("up"), "e00004": rate(None)}))
    for _ in range(2):
        with opener(tmp_path / "home", None, "warning")() as ws:
            assert ingest(ws, "desk", "widgets", tmp_path).refused == 0
    with opener(tmp_path / "home", None, "warning")() as ws:
        dataset = build(ws, "desk", "pairs", DatasetConfig(dev=0, gate=0))
        rows = {(row.chosen, row.rejected): row for row in load_rows(ws, dataset.id, "train")}
    several = ("kpi (normal), map (hero), trend (normal)", "alerts (normal)")
    assert several in rows and ("kpi (normal)", "alerts (normal)") in rows
    prompt = rows[several].prompt[0]["content"].splitlines()
    assert prompt[2:4] == ["Domains: pumps", "Time range: from: Monday, to: Friday"]
    assert prompt[-1].endswith("as: kpi (normal), trend (normal)")


def test_widgets_that_people_disagree_about_are_in_no_answer_of_several(tmp_path: Path) -> None:
    natural = {"natural": True}
    path = run_file(
        tmp_path,
        [
            entry(n, f"f{n}", scenario=name, **natural)
            for n, name in enumerate(("a", "b", "c", "d"))
        ],
    )
    rows = [
        {"entry_id": f"e0000{n}", **rate(rating, rated_at, device_id=device)}
        for n, rating, rated_at, device in [
            (0, "up", "2026-02-03", "x"),
            (1, "down", "2026-02-03", "x"),
            (1, "up", "2026-02-04", "x"),
            (2, "down", "2026-02-03", "x"),
            (3, "up", "2026-02-03", "x"),
            (3, "down", "2026-02-03", "y"),
        ]
    ]
    (tmp_path / "ratings.json").write_text(json.dumps(rows))
    traces, records, _ = read(path)
    (preference,) = [record for record in records if record.kind == "preference"]
    texts = {trace.external_id: trace.output for trace in traces}
    assert [texts[target.id] for target in preference.targets] == [
        "a (normal), b (normal)",
        "c (normal)",
    ]
    assert (
        preference.rater and preference.rater.id,
        preference.occurred_at and preference.occurred_at.day,
    ) == ("x", 4)


def test_descriptions_of_fixtures_reach_the_prompt_and_may_come_later(tmp_path: Path) -> None:
    path = run_file(
        tmp_path,
        [
            entry(1, "dial", "up"),
            entry(2, "bar", "down"),
            entry(3, "default-render", scenario="chatstream"),
        ],
    )
    with opener(tmp_path / "home", None, "warning")() as ws:
        assert ingest(ws, "desk", "widgets", path).stored == 3
    (tmp_path / "catalogue.json").write_text(
        json.dumps({"kpi": {"dial": "a round scale", "bar": None}, "chatstream": "a talk"})
    )
    asked = [trace.input[0]["content"].splitlines() for trace in read(path)[0]]
    assert asked[0][3:5] == [
        "Fixtures: bar, dial",
        "- dial: a round scale",
    ] and "- bar: " not in "".join(asked[0])
    assert "- default-render: a talk" in asked[2]
    with opener(tmp_path / "home", None, "warning")() as ws:
        again = ingest(ws, "desk", "widgets", path)
    assert (again.stored, again.refused) == (0, 0), again.refusals


def test_ratings_are_filtered_by_tag_and_confidence_and_counted(
    tmp_path: Path, command_line: Run
) -> None:
    def sure(confidence: float) -> dict[str, Any]:
        return {"pipeline_meta": {"intent": {"confidence": confidence}}}

    entries = [
        entry(1, "dial", "up", **sure(0.9), tags=["perfect"]),
        entry(2, "bar", "down", **sure(0.3)),
        entry(3, "map", **sure(0.2)),
    ]
    run_file(tmp_path / "run", entries)
    (tmp_path / "run" / "ratings.json").write_text(
        json.dumps({"e00003": rate("up") | {"tags": ["ugly", "perfect"]}})
    )

    def imported(*options: str) -> tuple[int, dict[str, int]]:
        code, out, err = command_line(
            "import", "widgets", "run", "--agent", "desk", "--dry-run", "--json", *options
        )
        assert code == 0, err
        report = json.loads(out)
        assert report["records"]["trace"] == 3 and report["refused"] == 0
        return report["records"].get("thumb", 0), report["left_out"]

    assert imported() == (3, {})
    assert imported("--min-confidence", "0.5") == (
        1,
        {"the confidence of what was rated is below 0.5": 2},
    )
    assert imported("--tag", "perfect") == (2, {"its rating has none of the tags perfect": 1})
    assert imported("--tag", "perfect", "--without-tag", "ugly") == (
        1,
        {"its rating has none of the tags perfect": 1, "its rating has the tag 'ugly'": 1},
    )
    (tmp_path / "run.jsonl").write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    code, out, _ = command_line(
        "import", "widgets", "run.jsonl", "--agent", "desk", "--min-confidence", "0.5", "--json"
    )
    report = json.loads(out)
    assert (
        code,
        report["stored"],
        report["records"]["thumb"],
        sum(report["left_out"].values()),
    ) == (0, 3, 1, 1)
    code, _, err = command_line(
        "import", "jsonl", "run.jsonl", "--agent", "desk", "--tag", "perfect"
    )
    assert code == 2 and "widgets" in err

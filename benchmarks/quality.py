"""How good models get by each road from the same feedback: ours by its defaults, TRL, a plain loop,
prompting.

    make bench-quality ARGS="--world desk --seeds 4,5 --ratings 250,2500"
    make bench-quality ARGS="--base smollm2 --world tone"

For each world, seed and number of ratings: the world is written and imported, and every contestant
gets the same feedback. Peers get all rows of our datasets, those that ours holds out too, because
they would be there for somebody who does not use it. Each trains in a process of its own. All are
judged alike: by greedy answers to the gold examples, in a world of preferences by how many pairs
they rank as people did, in one of taste by how often its person prefers a fresh answer to the
base's; nobody trained on these.

For ours, `verdict` is what the gate says of the result: approved, canary or rejected.

Columns: success on gold before and after, the gain with a 95 % interval (paired, clustered by
group); `kept`, of what the base had right the share that is still right; `elsewhere`, by how many
points success fell or rose at other work that the base can do; seconds and peak memory of the
training. `ceiling` is the plain loop on the true answers of all rated prompts.

Seeds are split into those on which defaults are chosen and those on which they are proved
(`worlds/`); without `--seeds` the proving ones are taken. Results are written after every
contestant, and the same command goes on where it was stopped.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from statistics import mean
from typing import Any

import peers
import platformdirs
import raw
from learners.learner import Spec
from learners.plain_loop import PLAIN_REWARD
from learners.prompted import few_shot_answers, nearest_answers
from options import numbers
from worlds.judges import JUDGES, AnswerJudge, Judge
from worlds.world import Files, World, read_lines, write_lines

from thumbwheel.capture.ingest import ingest
from thumbwheel.core.config import Home, Sources
from thumbwheel.core.errors import ThumbwheelError
from thumbwheel.datasets.build import build, load_rows
from thumbwheel.datasets.types import SPLITS
from thumbwheel.db.workspace import Workspace
from worlds import WORLDS

HERE = Path(__file__).parent
AGENT = "world"
CACHE = Path(platformdirs.user_cache_dir("thumbwheel")) / "worlds"
SHAPES = ("chats", "labels", "pairs")
OWN, SMOLLM2 = "own", "smollm2"
"""The base of the world, and SmolLM2-135M-Instruct."""
OURS = (
    "ours sft",
    "ours kto",
    "ours dpo",
    "ours reward",
    "ours grpo",
    "ours ppo",
    "ours plan",
    "ours dev",
)
TRL = tuple(
    f"{recipe} {method}"
    for recipe in ("trl-default", "trl-docs")
    for method in ("sft", "kto", "dpo", "reward", "grpo")
)
PLAIN = ("plain 4x1e-3", "plain 6x2e-3", "plain 6x2e-3 cosine", "plain 6x5e-4 cosine")
PROMPTED = ("few-shot", "nearest")
CEILING = "ceiling"
CONTESTANTS = (*PROMPTED, *PLAIN, PLAIN_REWARD, CEILING, *TRL, *OURS)
OF_PREFERENCES = tuple(
    name for name in CONTESTANTS if name.split()[-1] in ("reward", "dpo", "plan")
)
"""What can be judged by pairs."""
OF_ANSWERS = tuple(
    name
    for name in CONTESTANTS
    if name.split()[-1] not in ("reward", "grpo") or name == "ours grpo"
)
"""What can be judged by answers, where no checker judges fresh ones."""
OF_TASTE = tuple(
    name for name in OF_ANSWERS if name not in (*PROMPTED, CEILING) and "grpo" not in name
)
"""What can be judged by a taste, for which no answer is the right one."""
OF_CHECKED = (*OF_ANSWERS, "trl-default grpo", "trl-docs grpo")


@dataclass(frozen=True)
class Setting:
    """One world at one seed with so many ratings, as files and as a home."""

    world: World
    base_name: str
    seed: int
    ratings: int
    folder: Path
    files: Files
    row_files: dict[str, str]
    options: dict[str, Any]
    """What ours is told beyond its defaults."""
    gated: bool

    @property
    def home(self) -> Path:
        """Where ours has it."""
        return self.folder / "home"


def main() -> None:
    """Measure what is missing, print the table."""
    arguments = parser().parse_args()
    world = WORLDS[arguments.world]
    seeds = arguments.seeds or list(world.prove)
    able = contestants_of(world)
    names = arguments.contestants.split(",") if arguments.contestants else list(able)
    if unknown := set(names) - set(able):
        sys.exit(
            f"no contestant {', '.join(sorted(unknown))} in {world.name}; known: {', '.join(able)}"
        )
    rows = known_rows(arguments.json)
    is_small = arguments.base == OWN
    base = world.base(CACHE) if is_small else world.pretrained_base(CACHE)
    for seed in seeds:
        most = world.tune_ratings if seed in world.tune else world.prove_ratings
        for ratings in arguments.ratings or [most]:
            missing = [
                (name, options)
                for options in arguments.options or [{}]
                for name in names
                if not is_measured(rows, world, arguments.base, seed, ratings, name, options)
            ]
            if not missing:
                continue
            with tempfile.TemporaryDirectory() as folder:
                setting = prepare(world, seed, ratings, Path(folder), base, arguments)
                judge = JUDGES[world.judged_by](world, setting.files)
                for name, options in missing:
                    row = measure(replace(setting, options=options), judge, name)
                    rows.append(row)
                    show(row)
                    raw.write(arguments.json, rows=rows)
    summarise([row for row in rows if (row["world"], base_of(row)) == (world.name, arguments.base)])


def contestants_of(world: World) -> tuple[str, ...]:
    """Those that the world's judge can judge."""
    if world.judged_by == "preferences":
        return OF_PREFERENCES
    if world.judged_by == "taste":
        return OF_TASTE
    return OF_CHECKED if world.checked else OF_ANSWERS


def summarise(rows: Sequence[dict[str, Any]]) -> None:
    """Over seeds: the mean gain of each contestant, its least and most, and in how many seeds its
    lower bound is above zero."""
    print(
        f"\n{'contestant':16} {'ratings':>7} {'seeds':>5}  {'before':>6} {'after':>6}  "
        f"{'gain: mean, least, most':24} sure  kept  approved"
    )
    for name, ratings, options in dict.fromkeys(
        (row["contestant"], row["ratings"], json.dumps(row["options"])) for row in rows
    ):
        same = [
            row
            for row in rows
            if (row["contestant"], row["ratings"], json.dumps(row["options"]))
            == (name, ratings, options)
        ]
        gains = [100 * row["gain"] for row in same]
        before, after, still_right = (
            100 * mean(row[column] for row in same) for column in ("before", "after", "kept")
        )
        sure = sum(row["low"] > 0 for row in same)
        spread = f"{mean(gains):+.1f}, {min(gains):+.1f}, {max(gains):+.1f}"
        approved = (
            sum(row.get("verdict") == "approved" for row in same) if "verdict" in same[0] else ""
        )
        shown = "" if options == "{}" else options
        print(
            f"{name:16} {ratings:7} {len(same):5}  {before:6.1f} {after:6.1f}  {spread:24} "
            f"{sure:4}  {still_right:4.0f}  {approved:>8}  {shown}"
        )


def parser() -> argparse.ArgumentParser:
    """The options."""
    arguments = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    raw.option(arguments, "quality")
    arguments.add_argument("--world", required=True, choices=sorted(WORLDS))
    arguments.add_argument(
        "--base",
        choices=(OWN, SMOLLM2),
        default=OWN,
        help="the base of the world, or SmolLM2-135M-Instruct (default: %(default)s)",
    )
    arguments.add_argument(
        "--seeds",
        type=numbers,
        default=[],
        help="comma-separated; without them the world's proving seeds",
    )
    arguments.add_argument(
        "--ratings",
        type=numbers,
        default=[],
        help="comma-separated; without them as many as the world has",
    )
    arguments.add_argument(
        "--contestants",
        default="",
        help=f"comma-separated; without them all of {', '.join(CONTESTANTS)} that the world can "
        "judge",
    )
    arguments.add_argument(
        "--options",
        type=json.loads,
        action="append",
        help="settings of ours as JSON, to try others than the defaults; several are tried in turn",
    )
    arguments.add_argument(
        "--ungated",
        action="store_true",
        help="leave the verdict of the gate out, which asks all models once more; for tuning",
    )
    return arguments


def known_rows(path: Path) -> list[dict[str, Any]]:
    """What an earlier run measured."""
    return list(json.loads(path.read_text(encoding="utf-8"))["rows"]) if path.is_file() else []


def is_measured(
    rows: Sequence[dict[str, Any]],
    world: World,
    base_name: str,
    seed: int,
    ratings: int,
    contestant: str,
    options: dict[str, Any],
) -> bool:
    """Whether one of `rows` is of this contestant in this setting."""
    wanted = (world.name, seed, ratings, contestant, options)
    columns = ("world", "seed", "ratings", "contestant", "options")
    return any(
        base_of(row) == base_name and tuple(row[column] for column in columns) == wanted
        for row in rows
    )


def base_of(row: dict[str, Any]) -> str:
    """Return the name of the base that a row was measured on."""
    return str(row.get("base", OWN))


def prepare(
    world: World,
    seed: int,
    ratings: int,
    folder: Path,
    base: Path,
    arguments: argparse.Namespace,
) -> Setting:
    """Write the world, import it, and write its feedback as rows for the peers."""
    files = world.write(folder / "world", seed, ratings, base)
    row_files = {}
    with Workspace.open(Home.at(folder / "home").prepare(), Sources({}, "the benchmark", {})) as ws:
        ingest(ws, AGENT, "jsonl", files.traces)
        ingest(ws, AGENT, "jsonl", files.feedback)
        if files.gold:
            ingest(ws, AGENT, "jsonl", files.gold, reviewer="owner")
        for shape in SHAPES:
            rows = []
            try:
                dataset = build(ws, AGENT, shape)
            except ThumbwheelError as error:
                sys.stderr.write(f"no {shape}: {error}\n")
            else:
                rows = [asdict(row) for split in SPLITS for row in load_rows(ws, dataset.id, split)]
            row_files[shape] = str(write_lines(folder / f"{shape}.jsonl", rows))
    taught = [{"prompt": example.prompt, "completion": example.answer} for example in files.taught]
    row_files["checked"] = str(write_lines(folder / "taught.jsonl", taught))
    gated = not arguments.ungated
    return Setting(world, arguments.base, seed, ratings, folder, files, row_files, {}, gated)


def measure(setting: Setting, judge: Judge, name: str) -> dict[str, Any]:
    """The row of one contestant."""
    row: dict[str, Any] = {
        "world": setting.world.name,
        "base": setting.base_name,
        "seed": setting.seed,
        "ratings": setting.ratings,
        "contestant": name,
    }
    row["options"] = setting.options
    if setting.files.sampled_right is not None:
        row["sampled_right"] = setting.files.sampled_right
    if name in PROMPTED:
        assert isinstance(judge, AnswerJudge)  # no other world has these contestants
        liked = read_lines(Path(setting.row_files["chats"]))
        started = time.monotonic()
        if name == "nearest":
            texts = nearest_answers(liked, judge.examples)
        else:
            texts = few_shot_answers(
                setting.files.base, liked, judge.examples, setting.world.max_new_tokens
            )
        return row | judge.answers_row(texts) | {"seconds": round(time.monotonic() - started, 1)}
    result = learn(setting, name)
    judged = judge.model_row(result["adapter"]) if result["adapter"] else judge.unchanged_row()
    return row | judged | {key: value for key, value in result.items() if key != "adapter"}


def learn(setting: Setting, name: str) -> dict[str, Any]:
    """Run a learner in its process; what it prints."""
    script = "ours.py" if name in OURS else "trl_trainer.py" if name in TRL else "plain_loop.py"
    python = str(peers.python_of("trl-1.16")) if name in TRL else sys.executable
    tried = len(list(setting.folder.glob("*.json")))
    out = setting.folder / f"{name.replace(' ', '-')}-{tried}"
    home = setting.folder / f"{out.name}-home"
    if (
        name in OURS
    ):  # a copy, because the gate is stricter with every candidate that it judges by the same rows
        shutil.copytree(setting.home, home)
    files = setting.row_files
    learner = name
    if name == CEILING:
        learner, files = PLAIN[1], files | {"chats": files["checked"]}
    spec = Spec(
        learner=learner,
        base=str(setting.files.base),
        row_files=files,
        out=str(out),
        seed=setting.seed,
        home=str(home),
        agent=AGENT,
        max_new_tokens=setting.world.max_new_tokens,
        checked=setting.world.checked,
        options=setting.options,
        gated=setting.gated,
    )
    command = [
        python,
        str(HERE / "learners" / script),
        str(spec.write(setting.folder / f"{out.name}.json")),
    ]
    paths = [str(HERE), os.environ.get("PYTHONPATH")]
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, paths))}
    finished = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    lines = [line for line in finished.stdout.splitlines() if line.startswith("RESULT ")]
    if finished.returncode or not lines:
        sys.exit(f"{' '.join(command)} failed:\n{finished.stdout[-2000:]}{finished.stderr[-4000:]}")
    return dict(json.loads(lines[-1].removeprefix("RESULT ")))


def show(row: dict[str, Any]) -> None:
    """One line."""
    elsewhere = "" if row.get("elsewhere") is None else f"{100 * row['elsewhere']:+.1f}"
    memory = f"{row['peak_bytes'] / 1e9:.2f} GB" if "peak_bytes" in row else ""
    print(
        f"{row['world']:10} {row['seed']:3} {row['ratings']:5} {row['contestant']:16} "
        f"{100 * row['before']:5.1f} -> {100 * row['after']:5.1f}  "
        f"{100 * row['gain']:+5.1f} [{100 * row['low']:+5.1f}, {100 * row['high']:+5.1f}]  "
        f"kept {100 * row['kept']:5.1f}  elsewhere {elsewhere:>5}  {general_of(row)}"
        f"{row['seconds']:6.0f} s  "
        f"{memory:>8}  "
        f"{row.get('recommended') or row.get('method') or ''} {row.get('verdict') or ''} "
        f"{row.get('reason') or ''} {row['options'] or ''}",
        flush=True,
    )


def general_of(row: dict[str, Any]) -> str:
    """The general skill that is left, of a world with a pretrained base."""
    if "unseen" not in row:
        return ""
    return (
        f"general {100 * row['general']:5.1f}, unseen {100 * row['unseen']:5.1f}, "
        f"{row['general_nats_before']:.2f} -> {row['general_nats']:.2f} nats  "
    )


if __name__ == "__main__":
    main()

"""Figures of experiments on live traffic: wrong promotions, how fast a bad arm is stopped, and how
many units best-arm mode saves.

    python benchmarks/experiments.py aa          # 1,000 A/A experiments, a look after every event
    python benchmarks/experiments.py grid        # wrong verdicts over shares, rates, ramps, arms
    python benchmarks/experiments.py silence     # equal arms of which one's unhappy people say
                                                 # nothing, or say it a day later
    python benchmarks/experiments.py lost        # units of one arm that get lost on the way
    python benchmarks/experiments.py stoploss    # an arm that is 20 points worse
    python benchmarks/experiments.py bandit      # best-arm mode against an equal split
    python benchmarks/experiments.py whole       # A/A through the routing table, the inbox, the
                                                 # database and restarts; --runs as many as wanted
    python benchmarks/experiments.py served      # A/A through a server of its own, over HTTP
    python benchmarks/experiments.py seals       # what the seals of exposures cost
    python benchmarks/experiments.py routing     # what the choice of an arm costs a call

`--processes 2` shares the runs of `aa`, `grid`, `silence`, `stoploss`, `whole` and `served` between
two processes.

`aa` and `stoploss` take the controller's own analysis and decision over people who come one after
another, answer late, several times or not at all; every event is a look. `whole` takes everything
but HTTP, and `served` HTTP too: the server is killed once and stopped once in each run. `bandit`
has the settings of TensorZero's published simulator (Bernoulli arms, K = 6, easy and medium, delta
0.05, at least 10 pulls of an arm, batches of 100).
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
import timeit
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from functools import partial
from itertools import chain
from multiprocessing import get_context
from pathlib import Path
from typing import Any, TypeVar

import httpx2
import numpy as np

from thumbwheel.core.seal import make_seal
from thumbwheel.experiments import controller, store
from thumbwheel.experiments.analysis import MISMATCH, analyse, decide
from thumbwheel.experiments.exposures import collect
from thumbwheel.experiments.row_seals import check_seals, sealed_call, sealed_exposure
from thumbwheel.experiments.types import (
    ENDS,
    Arm,
    Collected,
    Experiment,
    ExperimentConfig,
    Figures,
    Plan,
    State,
    Stratum,
    UnitFigures,
)
from thumbwheel.loop import experiment as verbs
from thumbwheel.stats import best_arm
from thumbwheel.stats.sample_ratio import ShareStratum as Shares
from thumbwheel.stats.sample_ratio import chi_squared_p, sequential_p

ROOT = Path(__file__).parents[1]
sys.path.insert(0, str(ROOT))  # for the worlds and servers of the tests
START = datetime(2026, 1, 5, tzinfo=UTC)
GAPS = {
    "easy": (0.9, (0.15, 0.12, 0.10, 0.08, 0.06)),
    "medium": (0.7, (0.08, 0.06, 0.05, 0.04, 0.03)),
}
"""Difficulty -> the best arm's rate, and how much worse the others are."""
FIGURES = {
    "aa": 1000,
    "grid": 1000,
    "silence": 100,
    "lost": 500,
    "stoploss": 400,
    "bandit": 400,
    "whole": 1000,
    "served": 20,
    "seals": 2000,
    "routing": 500,
}
"""Figure -> runs (of `seals` and `routing`: calls), unless --runs says otherwise."""
PEOPLE_OF_A_PART = 120
"""Who come during one life of the server."""
BATCH = 100
LEAST_PULLS = 10
DELTA = 0.05
Result = TypeVar("Result")


@dataclass
class Person:
    """A unit: its arm, when it comes, and what it says when."""

    unit: str
    arm: str
    comes_at: float
    words: list[tuple[float, float]]
    """(hour, value); none for who says nothing."""


def experiment_of(config: ExperimentConfig) -> Experiment:
    """An experiment of two arms at equal shares."""
    arms = tuple(Arm(name=name, version_id=name, weights=name) for name in ("v0", "v1"))
    plan = Plan(arms=arms, config=config, tuned_for=1000.0)
    stratum = Stratum(0, {"v0": 0.5, "v1": 0.5}, "the start", START)
    collected = Collected()
    return Experiment(
        "exp_bench", "bench", "live", plan, "salt", State.RUNNING, "", collected, START, None,
        (stratum,),
    )  # fmt: skip


def people(random: np.random.Generator, count: int, rates: dict[str, float]) -> list[Person]:
    """People who come one after another; 70 % say something, some of them late, some twice."""
    crowd = []
    for number in range(count):
        arm = "v1" if random.random() < 0.5 else "v0"
        comes_at = number / 20
        words = []
        if random.random() < 0.7:
            taste = random.beta(3 * rates[arm], 3 * (1 - rates[arm]))
            count_of_words = 1 + random.poisson(0.5)
            words = [
                (comes_at + random.exponential(2.0), float(random.random() < taste))
                for _ in range(count_of_words)
            ]
        crowd.append(Person(f"u{number}", arm, comes_at, sorted(words)))
    return crowd


def figures_over_time(crowd: list[Person]) -> Iterator[tuple[float, int, Figures]]:
    """After every word: (hour, people who came so far, the figures)."""
    events: list[tuple[float, int, float | None]] = []
    for index, person in enumerate(crowd):
        events.append((person.comes_at, index, None))
        events += [(hour, index, value) for hour, value in person.words]
    events.sort()
    units: dict[int, UnitFigures] = {}
    totals: dict[int, tuple[float, int]] = {}
    for hour, index, value in events:
        person, moment = crowd[index], START + timedelta(hours=hour)
        if value is None:
            units[index] = UnitFigures(person.unit, person.arm, 0, moment, None, calls=1)
            continue
        total, count = totals.get(index, (0.0, 0))
        totals[index] = total + value, count + 1
        first_answer = units[index].answered_at or moment
        units[index] = replace(
            units[index],
            outcome=(total + value) / (count + 1),
            weight=float(count + 1),
            answered_at=first_answer,
        )
        yield hour, len(units), Figures(tuple(units.values()))


def each_seed(run: Callable[[int], Result], runs: int, processes: int) -> Iterator[Result]:
    """`run` of the seeds 0 to `runs` - 1, in order."""
    if processes == 1:
        yield from map(run, range(runs))
        return
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        yield from pool.map(run, range(runs))


def first_verdict(looks: Iterable[tuple[float, int, Figures]], every: int) -> tuple[str, int]:
    """(verdict, people who were exposed by then) of an experiment. `looks`: what could be seen, as
    `figures_over_time` gives it; every `every`-th is seen."""
    experiment = experiment_of(ExperimentConfig(min_hours=0.0))
    exposed = 0
    for number, (hour, came, figures) in enumerate(looks):
        exposed = came
        if number % every:
            continue
        inputs = analyse(experiment, figures, START + timedelta(hours=hour))
        verdict = decide(experiment.plan, inputs).verdict
        if verdict != "undecided":
            return verdict, exposed
    return "undecided", exposed


def run_aa(count: int, every: int, seed: int) -> str:
    """The verdict over people of whom no arm's are happier."""
    crowd = people(np.random.default_rng(seed), count, {"v0": 0.6, "v1": 0.6})
    verdict, _ = first_verdict(figures_over_time(crowd), every)
    return verdict


def bench_aa(runs: int, processes: int, every: int, count: int) -> dict[str, Any]:
    """Arms that are the same: none may win in more than alpha of all runs."""
    config = ExperimentConfig()
    verdicts = Counter(each_seed(partial(run_aa, count, every), runs, processes))
    return {
        "runs": runs,
        "people": count,
        "words_between_looks": every,
        "alpha": config.alpha,
        "won": verdicts["won"],
        "wrong_promotions": verdicts["won"] / runs,
        "stopped_wrongly": verdicts["lost"] / runs,
        "stop_alpha": config.stop_alpha,
        "units_do_not_arrive": verdicts["stopped"] / runs,
    }


SILENCES = ("unhappy_silent", "unhappy_late", "happy_late")
"""Of v1, while people like both arms alike: 40 instead of 70 % of the unhappy ones answer; they
answer a day later; the happy ones answer a day later."""
SILENCE_LOOK = 100
"""People between two looks."""


def run_silence(kind: str, count: int, seed: int) -> tuple[str, bool]:
    """(verdict, whether silence or lag was ever named) of equal arms that answer differently; forty
    people come in an hour, 67 % are happy and 70 % answer."""
    random = np.random.default_rng(seed)
    units = []
    for number in range(count):
        arm = "v1" if random.random() < 0.5 else "v0"
        is_happy = bool(random.random() < 0.67)
        is_other = arm == "v1" and is_happy == (kind == "happy_late")
        answers = random.random() < (0.4 if is_other and kind == "unhappy_silent" else 0.7)
        moment = START + timedelta(minutes=1.5 * number)
        lag = timedelta(hours=24 if is_other and kind != "unhappy_silent" else 0)
        unit = UnitFigures(f"u{number}", arm, 0, moment, None, calls=1)
        if answers:
            unit = replace(unit, outcome=float(is_happy), weight=1.0, answered_at=moment + lag)
        units.append(unit)
    experiment = experiment_of(ExperimentConfig())
    is_named = False
    for came in range(SILENCE_LOOK, count + 1, SILENCE_LOOK):
        now = units[came - 1].exposed_at
        seen = [
            unit
            if unit.answered_at is None or unit.answered_at <= now
            else replace(unit, outcome=None, weight=0.0, answered_at=None)
            for unit in units[:came]
        ]
        decision = decide(experiment.plan, analyse(experiment, Figures(tuple(seen)), now))
        reasons = " ".join(decision.reasons)
        is_named = is_named or "stays silent" in reasons or "other people" in reasons
        if decision.verdict != "undecided":
            return decision.verdict, is_named
    return "undecided", is_named


def bench_silence(runs: int, processes: int, count: int) -> dict[str, Any]:
    """Arms that people like alike, and that answer differently: what is decided."""
    rows = {}
    for kind in SILENCES:
        ends = list(each_seed(partial(run_silence, kind, count), runs, processes))
        verdicts = Counter(verdict for verdict, _ in ends)
        rows[kind] = {**verdicts, "named": sum(is_named for _, is_named in ends)}
    return {"runs": runs, "people": count, "people_between_looks": SILENCE_LOOK, **rows}


LOST = (
    (0.5, 0.0, 10_000),
    (0.5, 0.1, 6000),
    (0.5, 0.1, 10_000),
    (0.5, 0.05, 20_000),
    (0.5, 0.2, 2000),
    (0.1, 0.1, 20_000),
    (0.5, 0.5, 300),
)
"""Share of the treatment, the part of its units that gets lost, people."""


def bench_lost(runs: int) -> dict[str, Any]:
    """How often it is seen that units of one arm get lost: by the check that may be looked at
    whenever somebody likes, twenty times, and by a test with one look at the end."""
    random = np.random.default_rng(0)
    rows = []
    for share, lost, people_count in LOST:
        seen = seen_at_the_end = 0
        for _ in range(runs):
            treated = random.random(people_count) < share
            arrives = random.random(people_count) >= lost * treated
            looks = np.linspace(people_count / 20, people_count, 20).astype(int) - 1
            control = np.cumsum(~treated & arrives)[looks]
            treatment = np.cumsum(treated & arrives)[looks]
            strata = [
                Shares([int(first), int(second)], [1 - share, share])
                for first, second in zip(control, treatment, strict=True)
            ]
            seen += any(sequential_p([stratum]) < MISMATCH for stratum in strata)
            seen_at_the_end += chi_squared_p(strata[-1]) < MISMATCH
        rows.append(
            {
                "share": share,
                "lost": lost,
                "people": people_count,
                "seen": seen / runs,
                "seen_by_one_look": seen_at_the_end / runs,
            }
        )
    return {"runs": runs, "p": MISMATCH, "rows": rows}


def figures_of_a_bad_arm(random: np.random.Generator) -> Iterator[tuple[float, int, Figures]]:
    """As `figures_over_time`, of people who come every minute and answer at once, happy in 0.5
    instead of 0.7 with v1."""
    units: list[UnitFigures] = []
    for number in range(3000):
        arm = "v1" if random.random() < 0.5 else "v0"
        rate = {"v0": 0.7, "v1": 0.5}[arm]
        hour = number / 60
        moment = START + timedelta(hours=hour)
        value = float(random.random() < rate)
        units.append(UnitFigures(f"u{number}", arm, 0, moment, value, 1.0, moment))
        yield hour, len(units), Figures(tuple(units))


def run_stoploss(every: int, seed: int) -> tuple[str, int]:
    """(verdict, exposures until then) of an arm that is 20 points worse."""
    return first_verdict(figures_of_a_bad_arm(np.random.default_rng(seed)), every)


def bench_stoploss(runs: int, processes: int, every: int) -> dict[str, Any]:
    """An arm that is 20 points worse, where everybody answers at once."""
    ends = list(each_seed(partial(run_stoploss, every), runs, processes))
    exposures = [count for _, count in ends]
    return {
        "runs": runs,
        "rates": [0.7, 0.5],
        "lost": sum(verdict == "lost" for verdict, _ in ends) / runs,
        "median_exposures": statistics.median(exposures),
        "exposures_95": float(np.quantile(exposures, 0.95)),
    }


def bench_bandit(runs: int) -> dict[str, Any]:
    """Best-arm mode and an equal split, by the same rule for stopping."""
    rows: dict[str, Any] = {}
    for difficulty, (best, gaps) in GAPS.items():
        rates = np.array([best, *(best - gap for gap in gaps)])
        row: dict[str, Any] = {"rates": rates.round(3).tolist()}
        for name, is_adaptive in (("equal", False), ("best_arm", True)):
            pulls, errors = [], 0
            for seed in range(runs):
                used, winner = identify(np.random.default_rng(seed), rates, is_adaptive)
                pulls.append(used)
                errors += winner != 0
            row[name] = {"mean_units": statistics.fmean(pulls), "errors": errors / runs}
        row["saved"] = 1 - row["best_arm"]["mean_units"] / row["equal"]["mean_units"]
        rows[difficulty] = row
    saved = statistics.fmean(row["saved"] for row in rows.values())
    return {"runs": runs, "delta": DELTA, **rows, "mean_saved": saved}


def identify(random: np.random.Generator, rates: np.ndarray, is_adaptive: bool) -> tuple[int, int]:
    """(units until the best arm was known, the arm that was taken for it)."""
    arms = len(rates)
    counts, sums = np.zeros(arms), np.zeros(arms)
    shares = np.full(arms, 1 / arms)
    while True:
        drawn = random.multinomial(BATCH, shares)
        counts += drawn
        sums += random.binomial(drawn, rates)
        if counts.min() < LEAST_PULLS:
            continue
        means = sums / counts
        variances = np.maximum(means * (1 - means), 1e-3)
        if best_arm.is_decided(counts, means, variances, DELTA):
            return int(counts.sum()), int(np.argmax(means))
        if is_adaptive:
            shares = best_arm.tracked_shares(counts, means, variances)


@dataclass
class WholeRun:
    """What became of an A/A experiment of the whole controller."""

    verdict: str = "undecided"
    cpu_seconds: list[float] = field(default_factory=list)
    """Of each look."""


def run_whole(seed: int) -> WholeRun:
    """400 people who call through the routing table and speak through the inbox, late and in
    another order; a look after every twenty of them."""
    from tests.worlds.experiment_world import experiment_world

    random = np.random.default_rng(seed)
    run = WholeRun()
    with tempfile.TemporaryDirectory() as folder, experiment_world(Path(folder)) as world:
        experiment = world.begin()
        waiting: list[tuple[str, bool]] = []
        for number in range(400):
            trace_id, _ = world.ask(f"user-{seed}-{number}")
            waiting.append((trace_id, bool(random.random() < 0.6)))
            while len(waiting) > 10 or (waiting and random.random() < 0.3):
                world.rate(*waiting.pop(int(random.integers(len(waiting)))))
            if number == 200:
                world.refresh()  # a server that starts anew reads everything from its rows
            if number % 20 == 19:
                began = time.process_time()
                decision = world.turn().get(experiment.id)
                run.cpu_seconds.append(time.process_time() - began)
                if decision is not None and decision.verdict != "undecided":
                    run.verdict = decision.verdict
                    break
    return run


def bench_whole(runs: int, processes: int) -> dict[str, Any]:
    """A/A experiments of the whole controller: calls through the routing table, words through the
    inbox, the database, a restart on the way, a look after every few events."""
    ends = list(each_seed(run_whole, runs, processes))
    verdicts = Counter(run.verdict for run in ends)
    seconds = list(chain.from_iterable(run.cpu_seconds for run in ends))
    return {
        "runs": runs,
        "looks": len(seconds),
        "verdicts": dict(verdicts),
        "wrong_promotions": verdicts["won"] / runs,
        "stopped_wrongly": verdicts["lost"] / runs,
        "cpu_seconds_a_look": statistics.median(seconds),
    }


def bench_served(runs: int, processes: int) -> dict[str, Any]:
    """A/A experiments through a server in a process of its own: calls and words over HTTP, late
    words, a kill and a stop on the way, a look after every few people beside the server's own."""
    ends = []
    for seed, run in enumerate(each_seed(run_served, runs, processes)):
        ends.append(run)
        print(f"run {seed}: {run}", file=sys.stderr, flush=True)
    verdicts = Counter(run.verdict for run in ends)
    return {
        "runs": runs,
        "looks_beside_the_servers": sum(run.looks for run in ends),
        "verdicts": dict(verdicts),
        "wrong_promotions": verdicts["won"] / runs,
        "stopped_wrongly": verdicts["lost"] / runs,
        "calls": sum(run.asked for run in ends),
        "calls_counted": sum(run.counted for run in ends),
    }


@dataclass
class ServedRun:
    """What became of an A/A experiment behind a server."""

    verdict: str = "running"
    asked: int = 0
    counted: int = 0
    looks: int = 0


def run_served(seed: int) -> ServedRun:
    """One A/A experiment behind a server of its own, in a home of its own."""
    from tests.servers.scripted_upstream import ScriptedUpstream
    from tests.servers.thumbwheel_server import running
    from tests.worlds.experiment_world import ask_over_http, rate_over_http
    from tests.worlds.gateway_world import AGENT, opened_home, serve_remote
    from thumbwheel.models.types import Agent, EndpointAddress

    random = np.random.default_rng(seed)
    run = ServedRun()
    late: list[tuple[str, bool]] = []
    with (
        tempfile.TemporaryDirectory() as folder,
        ScriptedUpstream() as upstream,
        opened_home(home := Path(folder) / "home") as ws,
    ):
        serve_remote(ws, EndpointAddress(upstream.url, "large"))
        serve_remote(ws, EndpointAddress(upstream.url, "small"), alias=None)
        agent = Agent.named(AGENT)
        plan, forecast = verbs.draft(
            ws, agent, "live", ["v0", "v1"], [], {"min_hours": 0.0, "min_senders": 1}
        )
        experiment = verbs.start(ws, agent, "live", plan, forecast, salt=f"salt {seed}")

        def has_ended() -> bool:
            verbs.turn_all(ws)
            run.looks += 1
            return controller.find(ws, experiment.id).state in ENDS

        # Three lives of the server: the first one is killed, the others are stopped.
        for part in range(3):
            with running(home) as server, httpx2.Client(base_url=server.url, timeout=120) as client:
                for number in range(PEOPLE_OF_A_PART):
                    trace_id, _ = ask_over_http(client, f"user-{part}-{number}")
                    run.asked += 1
                    late.append((trace_id, bool(random.random() < 0.6)))
                    while len(late) > 30 or (late and random.random() < 0.4):
                        rate_over_http(client, *late.pop(int(random.integers(len(late)))))
                    if number % 10 == 9 and has_ended():
                        break
                if part == 0:
                    server.process.kill()
            if has_ended():
                break
        ended = controller.find(ws, experiment.id)
        run.verdict, run.counted = str(ended.state), ended.collected.calls
    return run


def bench_seals(calls: int) -> dict[str, Any]:
    """Processor time of reading recorded calls into exposures, and the part of it that the seals
    take: all calls again, sealed and compared as a replay does it."""
    from tests.worlds.experiment_world import experiment_world

    with tempfile.TemporaryDirectory() as folder, experiment_world(Path(folder)) as world:
        experiment = world.begin()
        for number in range(calls):
            world.ask(f"user-{number}")
        world.drain()
        began = time.process_time()
        collect(world.ws, experiment, datetime.now(UTC))
        collecting = time.process_time() - began
        current = controller.find(world.ws, experiment.id)
        with world.ws.db.read() as connection:
            exposures = store.exposures_of(connection, experiment.id)
            rows = store.calls_of(connection, experiment.id)
        seal = make_seal(world.ws.home.signing)
        began = time.process_time()
        for exposure in exposures:
            sealed_exposure(seal, experiment.id, exposure)
        for row in rows:
            sealed_call(seal, experiment.id, row)
        sealing = time.process_time() - began
        began = time.process_time()
        result = check_seals(world.ws, current)
        checking = time.process_time() - began
        assert result.changed == (), result
    return {
        "calls": calls,
        "microseconds_a_call_to_collect": round(1e6 * collecting / calls, 1),
        "of_which_seals": round(1e6 * sealing / calls, 1),
        "microseconds_a_call_to_check_all": round(1e6 * checking / calls, 1),
    }


def bench_routing(calls: int) -> dict[str, Any]:
    """Processor time of choosing what answers a call, while an experiment runs."""
    from tests.worlds.experiment_world import experiment_world
    from tests.worlds.gateway_world import AGENT
    from thumbwheel.gateway.routing import RoutingRequest

    with tempfile.TemporaryDirectory() as folder, experiment_world(Path(folder)) as world:
        world.begin()
        request = RoutingRequest(AGENT, "live", AGENT, subject="anna", session="s", trace="t")
        assert world.table.choose(request).draw is not None
        rounds = timeit.repeat(
            lambda: world.table.choose(request), time.thread_time, repeat=20, number=calls
        )
    return {
        "calls": calls,
        "rounds": len(rounds),
        "median_microseconds": round(1e6 * statistics.median(rounds) / calls, 2),
        "slowest_microseconds": round(1e6 * max(rounds) / calls, 2),
    }


def main() -> None:
    import raw  # beside this script: found where it is run, not where tests import it

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("figure", choices=list(FIGURES))
    parser.add_argument("--runs", type=int)
    parser.add_argument("--every", type=int, default=1, help="Words between two looks.")
    parser.add_argument(
        "--people", type=int, default=1000, help="Of each A/A experiment, or one of silence."
    )
    parser.add_argument("--processes", type=int, default=1)
    arguments = parser.parse_args()
    began = time.monotonic()
    runs = arguments.runs or FIGURES[arguments.figure]
    if arguments.figure == "aa":
        result = bench_aa(runs, arguments.processes, arguments.every, arguments.people)
    elif arguments.figure == "grid":
        from experiment_grid import bench_grid

        result = bench_grid(runs, arguments.processes)
    elif arguments.figure == "silence":
        result = bench_silence(runs, arguments.processes, arguments.people)
    elif arguments.figure == "lost":
        result = bench_lost(runs)
    elif arguments.figure == "stoploss":
        result = bench_stoploss(runs, arguments.processes, arguments.every)
    elif arguments.figure == "bandit":
        result = bench_bandit(runs)
    elif arguments.figure == "whole":
        result = bench_whole(runs, arguments.processes)
    elif arguments.figure == "served":
        result = bench_served(runs, arguments.processes)
    elif arguments.figure == "seals":
        result = bench_seals(runs)
    else:
        result = bench_routing(runs)
    result["minutes"] = round((time.monotonic() - began) / 60, 1)
    raw.write(raw.RESULTS / f"experiments-{arguments.figure}.json", **result)
    print(json.dumps(result, indent=1))


if __name__ == "__main__":
    main()

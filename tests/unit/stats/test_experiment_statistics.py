"""The rest of what experiments count with: shares of units, covariates, off-policy values, the best
arm, and the duration."""

import csv
import json
import math
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from tests.public_data import public_data
from thumbwheel.core.errors import DataError, InputError
from thumbwheel.stats.best_arm import is_decided, optimal_shares, tracked_shares
from thumbwheel.stats.covariate import adjusted, slope
from thumbwheel.stats.duration import detectable_effect, expected_units
from thumbwheel.stats.off_policy import doubly_robust, effective_size, ips, snips
from thumbwheel.stats.sample_ratio import (
    CONCENTRATIONS,
    LOSSES,
    ShareStratum,
    chi_squared_p,
    log_evidence,
    log_evidence_of_loss,
    response_p,
    sequential_p,
)
from thumbwheel.stats.sequential import Difference, Sample

VECTORS = json.loads((Path(__file__).parent / "peer_vectors.json").read_text())


def test_the_chi_squared_alarm_is_that_of_gbstats() -> None:
    for row in VECTORS["sample_ratio"]:
        p_value = chi_squared_p(ShareStratum(row["counts"], row["weights"]))
        assert p_value == pytest.approx(row["p"], abs=1e-9)
    assert chi_squared_p(ShareStratum([0, 0], [1, 1])) == 1.0


def test_the_sequential_alarm_is_that_of_its_authors() -> None:
    for row in VECTORS["sequential_sample_ratio"]:
        evidence = log_evidence(ShareStratum(row["counts"], row["shares"]))
        assert math.exp(evidence) == pytest.approx(row["factor"], rel=1e-9)


def test_the_sequential_alarm_over_all_moments_and_over_strata() -> None:
    random = np.random.default_rng(2)
    alarms = 0
    for _ in range(300):
        first = (random.random(1500) < 0.5).cumsum()
        counts = np.arange(1, 1501)
        values = (
            sequential_p([ShareStratum([int(n - k), int(k)], [0.5, 0.5])])
            for n, k in zip(counts[49::25], first[49::25], strict=True)
        )
        alarms += any(value < 0.05 for value in values)
    assert alarms <= 15
    # what is lost of one arm shows, also where the shares were changed on the way
    before, after = ShareStratum([4500, 480], [0.9, 0.1]), ShareStratum([5000, 4400], [0.5, 0.5])
    assert sequential_p([before]) > 0.5
    assert sequential_p([ShareStratum([300, 100], [0.5, 0.5])]) < 1e-9
    assert sequential_p([before, after]) < 0.001
    assert sequential_p([ShareStratum([10, 1], [1.0, 0.0])]) == 0.0
    with pytest.raises(InputError, match="each arm"):
        ShareStratum([1], [0.5, 0.5])


def test_a_tenth_of_an_arm_that_is_lost_is_seen() -> None:
    """Of 6,000 people a test with one look sees it in 73 %, the Dirichlet priors alone in 41 %."""
    random = np.random.default_rng(3)
    seen = 0
    for _ in range(300):
        treated = random.random(6000) < 0.5
        arrives = random.random(6000) < np.where(treated, 0.9, 1.0)
        counts = [np.cumsum(arm & arrives)[499::500] for arm in (~treated, treated)]
        seen += any(
            sequential_p([ShareStratum([int(first), int(second)], [0.5, 0.5])]) < 0.001
            for first, second in zip(*counts, strict=True)
        )
    assert 120 <= seen <= 190


def test_the_mean_of_the_sequential_alarm_by_hand() -> None:
    stratum = ShareStratum([3000, 2700], [0.5, 0.5])
    assert log_evidence_of_loss(stratum, 1, 0.1) == pytest.approx(
        2700 * math.log(0.9 / 0.95) - 3000 * math.log(0.95)
    )
    parts = [part for _, part in (*CONCENTRATIONS, *LOSSES)]
    assert math.fsum(parts) <= 1.0
    total = math.fsum(
        part * math.exp(log_evidence(stratum, concentration))
        for concentration, part in CONCENTRATIONS
    ) + math.fsum(
        part / 2 * math.exp(log_evidence_of_loss(stratum, arm, loss))
        for loss, part in LOSSES
        for arm in (0, 1)
    )
    assert sequential_p([stratum]) == pytest.approx(1 / total)
    assert sequential_p([]) == 1.0


def test_cuped_is_that_of_gbstats_and_takes_the_variance_that_was_predictable() -> None:
    random = np.random.RandomState(5)
    outcomes, earlier, sizes = [], [], (300, 280)
    for n in sizes:
        earlier.append(random.random_sample(n))
        outcomes.append(0.7 * earlier[-1] + 0.3 * random.random_sample(n))
    vector = VECTORS["cuped"]
    both = np.concatenate(outcomes), np.concatenate(earlier)
    assert slope(*both) == pytest.approx(vector["theta"], abs=1e-9)
    values = adjusted(*both, np.ones(580, bool))
    control, treatment = values[:300], values[300:]
    variances = [control.var(ddof=1), treatment.var(ddof=1)]
    assert variances == pytest.approx(vector["variances"], abs=1e-9)
    assert treatment.mean() - control.mean() == pytest.approx(vector["difference"], abs=1e-9)
    assert values.mean() == pytest.approx(both[0].mean())


def test_units_without_earlier_data_stay_as_they_are() -> None:
    outcomes, earlier = np.array([1.0, 0.0, 1.0]), np.array([0.5, 0.0, 0.0])
    has_earlier = np.array([True, False, False])
    assert adjusted(outcomes, earlier, has_earlier).tolist() == outcomes.tolist()


def test_off_policy_values_of_a_log_that_was_counted_by_hand() -> None:
    logged, wanted = np.array([0.5, 0.25, 0.8, 0.5]), np.array([0.9, 0.1, 0.4, 0.5])
    outcomes, weights = np.array([1.0, 0, 1, 0]), wanted / logged
    assert ips(outcomes, weights, fewest=2).value == pytest.approx(0.575)
    assert snips(outcomes, weights, fewest=2).value == pytest.approx(0.6216216216)
    predicted, expected = np.array([0.6, 0.4, 0.7, 0.3]), np.array([0.55, 0.5, 0.5, 0.4])
    assert doubly_robust(outcomes, weights, predicted, expected, fewest=2).value == pytest.approx(
        0.59
    )
    assert effective_size(weights) == pytest.approx(2.94409, abs=1e-5)
    with pytest.raises(DataError, match=r"worth 2\.9"):
        ips(outcomes, weights)
    with pytest.raises(InputError, match="one weight"):
        ips(outcomes, weights[:2])


def bandit_log(name: str) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Clicks, probabilities, and (item, position) as one number."""
    columns = np.loadtxt(
        public_data(f"bandit/obd-men-{name}.csv"), delimiter=",", skiprows=1, usecols=(2, 3, 4, 5)
    )
    return columns[:, 2], columns[:, 3], columns[:, 0] * 10 + columns[:, 1]


def test_open_bandit_the_random_policys_value_from_the_other_ones_log() -> None:
    clicks, propensities, _ = bandit_log("bts")
    truth = float(bandit_log("random")[0].mean())
    weights = (1 / 34) / propensities
    for estimate in (ips(clicks, weights), snips(clicks, weights)):
        assert estimate.interval.low <= truth <= estimate.interval.high
    # a policy that always shows one item is not in the log often enough
    item = bandit_log("bts")[2] // 10
    with pytest.raises(DataError, match="are worth"):
        ips(clicks, (item == 33) / propensities, fewest=500)


def test_open_bandit_the_other_policys_value_from_the_random_log() -> None:
    clicks, _, choices = bandit_log("random")
    target_clicks, target_propensities, target_choices = bandit_log("bts")
    # its mean probability of each item and position stands for the policy, which has no features
    shares: dict[float, float] = {}
    for choice in np.unique(target_choices):
        shares[choice] = float(target_propensities[target_choices == choice].mean())
    weights = np.array([shares.get(choice, 0.0) * 34 for choice in choices])
    estimate = snips(clicks, weights)
    assert estimate.interval.low <= target_clicks.mean() <= estimate.interval.high


@dataclass(frozen=True)
class Snapshot:
    """Both arms of a stream at one moment, since the start."""

    hour: float
    control: Sample
    treatment: Sample

    @property
    def difference(self) -> Difference:
        return Difference.between(self.control, self.treatment)


def test_asos_streams_without_an_effect_raise_alarms_only_where_the_arms_are_out_of_step() -> None:
    """Null streams are those whose last snapshot shows nothing to a test that looks once.

    In ten of them 22 snapshots raise an alarm. In each of the 22 one arm holds a load of the feed
    that the other arm gets one or two snapshots later. Without such snapshots no stream raises one.
    """
    streams = nulls = alarms = dropped = 0
    for snapshots in asos_streams():
        last = snapshots[-1].difference
        if abs(last.value) > 1.96 * math.sqrt(last.variance):
            continue
        nulls += 1
        out_of_step = snapshots_out_of_step(snapshots)
        dropped += len(out_of_step)
        excluding = set()
        for index, snapshot in enumerate(snapshots):
            interval = snapshot.difference.interval(0.05)
            if interval.low > 0 or interval.high < 0:
                excluding.add(index)
        streams += bool(excluding)
        alarms += len(excluding)
        assert excluding <= out_of_step
    assert (nulls, streams, alarms, dropped) == (149, 10, 22, 85)


def snapshots_out_of_step(snapshots: list[Snapshot]) -> set[int]:
    """The snapshots between a step of one arm against the other and a step back of like size, at
    most three snapshots later. Neither comes about where units are drawn: each is more than eight
    standard deviations of what was added since the snapshot before."""
    steps = [0.0]
    for before, after in pairwise(snapshots):
        steps.append(relative_step(before, after))
    large = [index for index, step in enumerate(steps) if abs(step) > 8]
    out_of_step: set[int] = set()
    for begin, end in pairwise(large):
        if end - begin <= 3 and steps[begin] * steps[end] < 0 and begin not in out_of_step:
            out_of_step |= set(range(begin, end))
    return out_of_step


def relative_step(before: Snapshot, after: Snapshot) -> float:
    """What the treatment gained more than the control since the snapshot before, in standard
    deviations; the root of the squares that were added is more than one."""
    sums, squares, counts = [], [], []
    for earlier, later in ((before.control, after.control), (before.treatment, after.treatment)):
        sums.append(later.n * later.mean - earlier.n * earlier.mean)
        squares.append(abs(sum_of_squares(later) - sum_of_squares(earlier)))
        counts.append(later.n - earlier.n)
    mean = sum(sums) / sum(counts) if sum(counts) else 0.0
    excess = sums[1] - sums[0] - mean * (counts[1] - counts[0])
    return excess / math.sqrt(sum(squares)) if sum(squares) else 0.0


def sum_of_squares(sample: Sample) -> float:
    return sample.n * (sample.variance + sample.mean**2)


def asos_streams() -> list[list[Snapshot]]:
    """The snapshots of each experiment, variant and metric, in the order of time."""
    streams: dict[tuple[str, str, str], list[Snapshot]] = {}
    with public_data("ab-tests/asos-digital-experiments.csv").open(newline="") as stream:
        for row in csv.DictReader(stream):
            if not row["variance_c"] or not row["variance_t"]:
                continue
            arms = []
            for side in ("c", "t"):
                n = int(float(row[f"count_{side}"]))
                arms.append(Sample(n, float(row[f"mean_{side}"]), float(row[f"variance_{side}"])))
            snapshot = Snapshot(float(row["time_since_start"]), *arms)
            if 0 < snapshot.difference.variance < math.inf:
                key = (row["experiment_id"], row["variant_id"], row["metric_id"])
                streams.setdefault(key, []).append(snapshot)
    return [sorted(rows, key=lambda row: row.hour) for rows in streams.values()]


def test_the_best_arms_shares_meet_the_lower_bound() -> None:
    even = optimal_shares(np.array([0.5, 0.4]), np.array([0.25, 0.25]))
    assert even.tolist() == pytest.approx([0.5, 0.5], abs=1e-6)
    # four equal rivals: the best arm gets as much as its square root says
    shares = optimal_shares(np.array([0.6, 0.5, 0.5, 0.5, 0.5]), np.full(5, 0.24))
    assert shares[0] / shares[1] == pytest.approx(2.0, rel=1e-6)
    tied = optimal_shares(np.array([0.5, 0.5]), np.array([0.25, 0.25]))
    assert tied.tolist() == [0.5, 0.5]


def test_the_tracked_shares_leave_no_arm_out_and_add_up() -> None:
    counts, means = np.array([500.0, 30.0, 500.0]), np.array([0.8, 0.2, 0.79])
    shares = tracked_shares(counts, means, means * (1 - means))
    assert shares.sum() == pytest.approx(1.0)
    assert shares.min() > 0.005
    assert not is_decided(counts, means, means * (1 - means), 0.05)
    apart = np.array([0.8, 0.2, 0.5])
    assert is_decided(counts, apart, apart * (1 - apart), 0.05)
    assert not is_decided(np.array([1.0, 50.0]), apart[:2], np.full(2, 0.2), 0.05)


def test_the_duration_and_the_effect_agree() -> None:
    units = expected_units(0.1, (0.25, 0.25), 0.05)
    assert units is not None
    assert detectable_effect(units, (0.25, 0.25), 0.05) == pytest.approx(0.1, rel=1e-3)
    uneven = expected_units(0.1, (0.25, 0.25), 0.05, share=0.1)
    assert uneven is not None
    assert uneven > 2 * units
    assert expected_units(1e-6, (0.25, 0.25), 0.05) is None
    assert detectable_effect(0, (0.25, 0.25), 0.05) == math.inf
    with pytest.raises(InputError, match="above zero"):
        expected_units(0.0, (0.25, 0.25), 0.05)


def test_outcomes_that_lag_in_one_arm_are_seen_and_other_rates_of_answering_are_not() -> None:
    random = np.random.default_rng(9)
    alarms = 0
    for _ in range(300):
        treated = random.random(1000) < 0.5
        answered = random.random(1000) < np.where(treated, 0.7, 0.4)
        alarms += response_p(treated, answered) < 0.05
        lags = (np.arange(1000) >= 500) & ~treated
        assert response_p(treated, answered & ~lags) < 1e-3
    assert alarms <= 15
    assert response_p(np.array([True]), np.array([True])) == 1.0
    assert response_p(np.array([], bool), np.array([], bool)) == 1.0

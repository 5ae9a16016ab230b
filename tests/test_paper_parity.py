"""The metrics against the published figures of the paper, from the rows that it released.

Released are the within-group rows of seed 2, so the minimal-pair table is computed in full. Of the
step-level tables (`overall`, `early_nonzero`) the scores are not released: only what follows from their
definitions, without scores, is checked.
"""

import csv
from pathlib import Path

import numpy as np
import pytest

from behaviortrace.harness import metrics

PAPER = Path(__file__).parents[1].parent / "shared" / "paper"
if not (PAPER / "results_table.csv").exists():
    pytest.skip("the paper's released rows are not beside this checkout", allow_module_level=True)

# The published column of each method; the covariate of the fluency control is mean log-probability.
COLUMN = {"GAS_centered": "mp_centered", "C1_plain": "mp", "norm_only": "norm", "fluency": "fluency"}
PUBLISHED_DIGITS = 0.5001e-4  # the table is rounded to four decimals
RESAMPLES = 20_000
# The published bounds carry the noise of their own random stream, of a length not published: an AUC with
# standard error 0.031 has its 2.5 % quantile known to 0.0026 from 1,000 resamples; three of those. Treating
# pairs as independent would halve the width (bounds off by 0.03).
BOUND_TOLERANCE = 0.008
# Summed over the seven rows that noise averages out.
WIDTH_TOLERANCE = 0.05

SEEDS, ROLLOUTS, EARLY_ROLLOUTS = ("0", "1", "2"), 16_000, 3_200


def table(name, **where):
    with open(PAPER / name, newline="") as file:
        rows = list(csv.DictReader(file))
    return [row for row in rows if all(row[key] == value for key, value in where.items())]


@pytest.fixture(scope="module")
def released():
    rows = table("minimal_pair_rows_seed2.csv")
    return {name: np.array([float(row[name]) for row in rows]) for name in rows[0]}


def minimal_pair_score(released, published):
    score = released[COLUMN[published["method"]]]
    if published["table"] == "mp_residualized":
        return metrics.residualise(score, released["fluency"], released["group"])
    return score


MINIMAL_PAIR = table("results_table.csv", table="mp_raw") + table(
    "results_table.csv", table="mp_residualized"
)


def name_of(published):
    return f"{published['table']}-{published['method']}"


@pytest.mark.parametrize("published", MINIMAL_PAIR, ids=name_of)
def test_published_auc_comes_out_to_four_decimals(released, published):
    score = minimal_pair_score(released, published)
    auc, pairs = metrics.within_group_auc(score, released["has_qzxbt"], released["group"])
    assert pairs == int(published["n"]) == 882
    assert auc == pytest.approx(float(published["value"]), abs=PUBLISHED_DIGITS)


@pytest.mark.parametrize("published", MINIMAL_PAIR, ids=name_of)
def test_published_bounds_come_out_to_resampling_noise(released, published):
    score = minimal_pair_score(released, published)
    got = metrics.bootstrap_auc(score, released["has_qzxbt"], released["group"], resamples=RESAMPLES, seed=0)
    assert got.low == pytest.approx(float(published["lo"]), abs=BOUND_TOLERANCE)
    assert got.high == pytest.approx(float(published["hi"]), abs=BOUND_TOLERANCE)


def test_published_widths_come_out_on_average(released):
    ours, theirs = 0.0, 0.0
    for published in MINIMAL_PAIR:
        got = metrics.bootstrap_auc(
            minimal_pair_score(released, published),
            released["has_qzxbt"],
            released["group"],
            resamples=RESAMPLES,
            seed=1,
        )
        ours += got.high - got.low
        theirs += float(published["hi"]) - float(published["lo"])
    assert ours == pytest.approx(theirs, rel=WIDTH_TOLERANCE)


def test_all_rows_of_the_minimal_pair_table_are_covered():
    assert sorted({row["method"] for row in MINIMAL_PAIR}) == sorted(COLUMN)
    assert len(MINIMAL_PAIR) == 7


def test_fluency_leaves_nothing_of_itself(released):
    # Why the table has no residualised row for fluency.
    residual = metrics.residualise(released["fluency"], released["fluency"], released["group"])
    assert metrics.within_group_auc(residual, released["has_qzxbt"], released["group"]) == (0.5, 882)


# Step level: which rollouts are ground truth, and in which step, is not released, but both published chance
# levels must come from one whole number of ground-truth rollouts, all of them among the early ones.


def ground_truth(seed):
    """The one whole number of ground-truth rollouts that fits both published chance levels of a seed."""
    chances = {
        name: float(table("results_table.csv", seed=seed, table=name)[0]["chance"])
        for name in ("overall", "early_nonzero")
    }
    possible = [
        n
        for n in range(1, EARLY_ROLLOUTS)
        if abs(n / ROLLOUTS - chances["overall"]) < PUBLISHED_DIGITS
        and abs(n / EARLY_ROLLOUTS - chances["early_nonzero"]) < PUBLISHED_DIGITS
    ]
    assert len(possible) == 1, f"seed {seed}: no single count fits both published chance levels, {possible}"
    return possible[0]


@pytest.mark.parametrize("seed", SEEDS)
def test_published_chance_is_the_floor_of_both_step_tables(seed):
    early = np.arange(ROLLOUTS) < EARLY_ROLLOUTS
    truth = np.arange(ROLLOUTS) < ground_truth(seed)
    overall = metrics.precision_at_truth(early, truth)
    within_early = metrics.precision_at_truth(np.zeros(EARLY_ROLLOUTS), truth[early])
    overall_row = table("results_table.csv", seed=seed, table="overall")[0]
    # "local-buffer" is constant over the early rollouts: equal scores reach the floor, as published.
    local_buffer = table("results_table.csv", seed=seed, table="early_nonzero", method="local-buffer")[0]
    assert overall.floor == pytest.approx(float(overall_row["chance"]), abs=PUBLISHED_DIGITS)
    assert within_early.precision == pytest.approx(float(local_buffer["value"]), abs=PUBLISHED_DIGITS)
    assert within_early.floor == pytest.approx(float(local_buffer["chance"]), abs=PUBLISHED_DIGITS)


@pytest.mark.parametrize("seed", SEEDS)
def test_step_before_cutoff_scores_five_times_chance(seed):
    # One early block of 3,200 is larger than |GT|, so precision is its density: 16,000/3,200 times chance.
    early = np.arange(ROLLOUTS) < EARLY_ROLLOUTS
    truth = np.arange(ROLLOUTS) < ground_truth(seed)
    by_rollout = metrics.precision_at_truth(early, truth)
    by_step = metrics.block_precision(
        [1.0, 0.0], [truth.sum(), 0], [EARLY_ROLLOUTS, ROLLOUTS - EARLY_ROLLOUTS]
    )
    assert by_step == pytest.approx(tuple(by_rollout))
    assert by_rollout.lift == pytest.approx(5.0)
    # ... which is above every published estimator but below the published ceiling of their finer blocks.
    rows = table("results_table.csv", seed=seed, table="overall")
    assert by_rollout.precision > max(float(row["value"]) for row in rows)
    assert by_rollout.precision < min(float(row["ceiling"]) for row in rows)

"""A baseline: what is worse, what is noise, and what can't be compared."""

from dataclasses import replace

import pytest

from behaviortrace.harness import baseline, results, settings
from behaviortrace.harness.baseline import Baseline
from behaviortrace.harness.results import Condition, Result, ResultsError

CONFIG = settings.parse(estimator="gas").config
ENVIRONMENT = {
    "python": "3.11.9",
    "versions": {"torch": "2.13.0", "trl": "1.16.0"},
    "commit": "0123456789abcdef",
    "machine": {"system": "Linux", "processor": "one x86_64", "cores": 2},
}

RAW = Condition("raw AUC", "pass", 0.60, 0.55, 0.65, 0.5, False, 900, {"0": 0.58, "1": 0.62})
BESIDE = Condition("AUC minus fluency's", "pass", 0.05, 0.02, 0.08, 0.0, False, 900, {"0": 0.05, "1": 0.05})
RANGE = Condition("range over seeds", "pass", 0.12, 0.10, 0.17, 0.15, True, 900, {"0": 0.58, "1": 0.62})
ROOM = Condition("room", "pass", 0.12, None, None, 0.1, False, 90, {"0": 0.09, "1": 0.15})

ORDER = ("fail", "inconclusive", "pass")


def result(*conditions, verdict=None):
    """Of the conditions, the worst decides."""
    worst = min(conditions, key=lambda c: ORDER.index(c.verdict)) if conditions else None
    return Result(
        check="beats-fluency",
        estimator="gas",
        scenario="decoy",
        readout="rollout",
        verdict=verdict or worst.verdict,
        statement="gas on decoy (rollout): …",
        statistic=worst.statistic if worst else None,
        value=worst.value if worst else None,
        conditions=list(conditions),
    )


@pytest.fixture
def load(tmp_path):
    """A baseline that holds these results."""

    def load(*known, config=CONFIG, now=CONFIG, environment=ENVIRONMENT):
        file = tmp_path / "baseline.json"
        results.write(file, [one.record() for one in known], environment, config)
        return Baseline.load(file, now)

    return load


def worse(condition, value, verdict="fail"):
    return replace(condition, value=value, verdict=verdict)


@pytest.mark.parametrize(
    ("known", "now", "kind", "words"),
    [
        # a worse verdict with an estimate that left the interval, and one that did not
        ([RAW], [worse(RAW, 0.54)], "worse", "raw AUC went from 0.600 [0.550, 0.650] to 0.540, outside"),
        ([RAW], [worse(RAW, 0.56)], "noise", "raw AUC went from 0.600 [0.550, 0.650] to 0.560, inside"),
        ([RAW], [worse(RAW, 0.54, "inconclusive")], "worse", "pass in the baseline, now inconclusive"),
        ([worse(RAW, 0.6, "inconclusive")], [worse(RAW, 0.54)], "worse", "inconclusive in the baseline"),
        # the same verdict may move as it likes
        ([RAW], [replace(RAW, value=0.51)], "same", "pass in the baseline"),
        ([worse(RAW, 0.52)], [worse(RAW, 0.31)], "same", "fail in the baseline"),
        # each statistic is compared with itself
        ([RAW, BESIDE], [worse(RAW, 0.56), BESIDE], "noise", "raw AUC went"),
        ([RAW, BESIDE], [RAW, worse(BESIDE, 0.01)], "worse", "fluency's went from 0.050 [0.020, 0.080]"),
        ([RAW, BESIDE], [worse(RAW, 0.56), worse(BESIDE, 0.01)], "worse", "AUC minus fluency's went"),
        # a limit, a figure without an interval, one that vanished, and one that nothing is known of
        ([RANGE], [worse(RANGE, 0.16)], "noise", "range over seeds"),
        ([RANGE], [worse(RANGE, 0.18)], "worse", "range over seeds"),
        ([ROOM], [worse(ROOM, 0.095)], "noise", "room went from 0.120 to 0.095"),
        ([ROOM], [worse(ROOM, 0.085)], "worse", "room"),
        ([RAW], [worse(RAW, None)], "worse", "to none"),
        ([RAW], [RAW, worse(BESIDE, 0.05)], "worse", "went from absent"),
        # better
        ([worse(RAW, 0.4)], [RAW], "better", "fail in the baseline, now pass"),
        ([worse(RAW, 0.4)], [worse(RAW, 0.52, "inconclusive")], "better", "now inconclusive"),
    ],
)  # fmt: skip
def test_what_is_worse_is_a_verdict_and_an_estimate(load, known, now, kind, words):
    change = load(result(*known)).compare(result(*now))
    assert change.kind == kind, change.sentence
    assert words in change.sentence
    assert change.excused == (kind in ("same", "better", "noise"))


@pytest.mark.parametrize(
    ("known", "now", "kind"),
    [
        ("pass", "error", "worse"),
        ("error", "error", "worse"),
        ("error", "fail", "better"),
        ("pass", "not-applicable", "worse"),
        ("fail", "not-applicable", "dropped"),
        ("not-applicable", "not-applicable", "same"),
        ("not-applicable", "fail", "new"),
        ("pass", "inconclusive", "worse"),  # all conditions hold, but the behaviour did not emerge
    ],
)
def test_verdicts_without_an_estimate(load, known, now, kind):
    change = load(result(RAW, verdict=known)).compare(result(RAW, verdict=now))
    assert change.kind == kind, change.sentence


def test_a_cell_that_the_baseline_lacks_is_new_and_not_excused(load):
    change = load(result(RAW)).compare(replace(result(worse(RAW, 0.4)), estimator="mine"))
    assert (change.kind, change.excused) == ("new", False)


@pytest.mark.parametrize("noise", [1e-7, 1e-4])
def test_what_rounding_changes_is_never_worse(load, noise):
    """An estimate that sits on its bar to within the noise has an interval around it."""
    at_the_bar = replace(RAW, value=0.5 + noise / 2, low=0.5 + noise / 4, high=0.55)
    below = worse(replace(at_the_bar, low=0.5 - noise), 0.5 + noise / 2, "inconclusive")
    assert load(result(at_the_bar)).compare(result(below)).kind == "noise"


# ---- what can't be compared


def test_other_estimators_and_scenarios_can_be_compared(load):
    now = settings.parse(estimator="tracincp", scenario="decoy", seeds="2,0,1").config
    assert load(result(RAW), now=now).cells


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"profile": "smoke"}, "profile tiny, not smoke"),
        ({"seeds": "0-3"}, "seeds 0, 1, 2, not 0, 1, 2, 3"),
        ({"draws": "3", "seeds": "0"}, "seeds 0, 1, 2, not 0 and draws 5, not 3"),
    ],
)
def test_another_session_is_named(load, options, words):
    with pytest.raises(ResultsError, match=words) as error:
        load(result(RAW), now=settings.parse(**options).config)
    assert "make the baseline anew with --bt-results" in str(error.value)


def test_a_changed_profile_is_named_with_what_changed(load):
    profile = CONFIG["profile"] | {"steps": 40, "learning_rate": 1e-3}
    with pytest.raises(ResultsError, match=r"other settings of profile tiny \(steps, learning_rate\)"):
        load(result(RAW), config=CONFIG | {"profile": profile})


def test_a_file_without_a_configuration_is_named(load):
    with pytest.raises(ResultsError, match="profile None, not tiny"):
        load(result(RAW), config={})


# ---- the summary


def test_the_summary_counts_and_names_what_changed(load):
    one, other, third = (replace(result(RAW), scenario=s) for s in ("a", "b", "c"))
    known = load(one, replace(other, verdict="fail"), third, replace(one, estimator="removed"))
    judged = [
        result(worse(RAW, 0.4)),
        replace(result(worse(RAW, 0.4)), scenario="a"),
        other,
        replace(result(worse(RAW, 0.56)), scenario="c"),
        replace(one, estimator="mine"),
    ]
    environment = ENVIRONMENT | {
        "versions": {"torch": "2.14.0", "trl": "1.16.0"},
        "machine": {"system": "Linux", "processor": "another x86_64", "cores": 64},
    }
    config = CONFIG | {"plugins": {"mine": "my-package 1.0"}}
    lines = baseline.summary(known, judged, environment, config, known=["gas", "mine"])
    assert lines == [
        "against baseline.json (commit 0123456789): 5 cells, 0 as before, 1 worse, 1 worse by noise, "
        "1 better, 0 dropped, 2 new",
        "worse: beats-fluency of gas on a (rollout): pass in the baseline, now fail: raw AUC went from "
        "0.600 [0.550, 0.650] to 0.400, outside the baseline's interval",
        "noise: beats-fluency of gas on c (rollout): pass in the baseline, now fail, but raw AUC went from "
        "0.600 [0.550, 0.650] to 0.560, inside the baseline's interval",
        "better: beats-fluency of gas on b (rollout): fail in the baseline, now pass",
        "new: gas, judged without a baseline in 1 of its cells",
        "new: mine, judged without a baseline in 1 of its cells",
        "gone: removed is in the baseline and not installed here",
        "differs: torch 2.13.0, now 2.14.0",
        "differs: processor one x86_64, now another x86_64",
        "differs: mine absent, now my-package 1.0",
    ]


def test_the_same_session_has_nothing_to_say(load):
    lines = baseline.summary(load(result(RAW)), [result(RAW)], ENVIRONMENT, CONFIG, known=["gas"])
    assert len(lines) == 1
    assert "1 as before, 0 worse" in lines[0]

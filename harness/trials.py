"""Trials: recorded runs as the checks see them, with their labels, and scores computed on demand.

One letter per axis: N rollouts, S steps, Q groups, D target draws, R resamples.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import metrics, registry, store
from .cache import Cache
from .estimator import rollout_scores, step_scores, trait
from .evidence import Evidence
from .plants import emerged, plants
from .run import RunError

Floats = NDArray[np.float64]
Bools = NDArray[np.bool_]

RESAMPLES = 2000

RATE_WANTED = 0.5
"""The analysis checkpoint is the captured one whose probe rate is nearest to this."""


@dataclass(frozen=True)
class Scores:
    """Of one estimator on one run; D is 1 for a method that ignores the target, None a readout it lacks."""

    rollout: Floats | None
    """(D, N)"""
    step: Floats | None
    """(D, S)"""


@dataclass(frozen=True, eq=False)
class Trial:
    """One run as the checks see it. The labels live here, and no estimator gets to see one."""

    seed: int
    step: NDArray[np.int64]
    """(N,)"""
    group: NDArray[np.int64]
    """(N,), unique over the run."""
    behaviour: Bools
    """(N,): shows the behaviour."""
    boosted: Bools
    """(N,): was paid for it, the cause."""
    findable: Bools
    """(N,): boosted, with an advantage other than 0."""
    planted: Bools
    """(S,): the step pays the plant."""
    fluency: Floats
    """(N,): mean log-probability at the analysis checkpoint, in nats."""
    length: NDArray[np.int64]
    """(N,), in tokens."""
    initial_rate: float
    analysis_rate: float
    final_rate: float
    """Share of probe replies that show the behaviour: at θ_0, the analysis checkpoint, the end; in [0, 1]."""
    emerged: bool
    score: Callable[[str], Scores]
    """By name; may raise EstimatorError."""
    _scores: dict[str, Scores] = field(default_factory=dict)

    def scores(self, name: str) -> Scores:
        """The scores of an estimator, computed once."""
        if name not in self._scores:
            self._scores[name] = self.score(name)
        return self._scores[name]

    @cached_property
    def group_weights(self) -> Floats:
        """(R, Q): how often each resample draws each group."""
        return metrics.resample_weights(len(np.unique(self.group)), RESAMPLES, self.seed).astype(float)

    @cached_property
    def step_weights(self) -> Floats:
        """(R, S): how often each resample draws each step."""
        return metrics.resample_weights(len(self.planted), RESAMPLES, self.seed).astype(float)

    def per_step(self, value: NDArray[Any]) -> Floats:
        """Sum over each step's rollouts, (S,)."""
        return np.bincount(self.step, value, len(self.planted)).astype(float)


def open_trial(cache: Cache, scenario: str, seed: int, draws: int) -> Trial:
    """The run of (scenario, seed), which must be in the cache. Raises RunError for a damaged one."""
    recorded = cache.run(scenario, seed)
    folder = cache.gradient_folder(scenario, seed)
    evidence = store.open_evidence(recorded, folder)
    rollouts, labels, rates = recorded.rollouts, recorded.labels, recorded.probe_rates
    if labels is None:
        raise RunError(f"{recorded.folder} has no labels: its cause is not known")
    analysis = min(evidence.checkpoints, key=lambda c: abs(rates[c.step] - RATE_WANTED))
    first, last = rates[recorded.checkpoints[0]], rates[recorded.checkpoints[-1]]
    profile = cache.profile
    plant, _ = plants(scenario, seed, profile.steps, profile.plant, profile.decoy)
    boosted = labels["boosted"].to_numpy()
    return Trial(
        seed=seed,
        step=rollouts["step"].to_numpy(),
        group=rollouts["group"].to_numpy(),
        behaviour=rollouts["behaviour_mask"].map(any).to_numpy(),
        boosted=boosted,
        findable=boosted & (rollouts["advantage"].to_numpy() != 0),
        planted=np.isin(np.arange(profile.steps), plant.steps),
        fluency=analysis.logprob.astype(float),
        length=rollouts["length"].to_numpy(),
        initial_rate=first,
        analysis_rate=rates[analysis.step],
        final_rate=last,
        emerged=emerged(first, last, cache.null_rates()),
        score=lambda name: score(name, evidence, folder, draws),
    )


def score(name: str, evidence: Evidence, folder: Path, draws: int) -> Scores:
    """The estimator's scores for each target draw; one draw for a method that ignores the target.

    Raises EstimatorError when the estimator does not keep the contract.
    """
    estimator = registry.load(name)
    count = draws if trait(estimator, "uses_target") else 1
    targets = [store.open_target(evidence, folder, draw) for draw in range(count)]
    rows = {
        readout: np.stack([scores(estimator, evidence, target) for target in targets])
        for readout, scores in (("rollout", rollout_scores), ("step", step_scores))
        if readout in trait(estimator, "readouts")
    }
    return Scores(rollout=rows.get("rollout"), step=rows.get("step"))

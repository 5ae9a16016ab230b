"""What an estimator is, and what can be wrong with one.

Any object with a `name` and `score(evidence, target)` will do; nothing of ours needs to be imported. The
other attributes are optional, and `trait` gives their defaults. NumPy is imported only to check scores: a
pytest plugin, which loads everywhere, needs no more than names and errors.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from .evidence import Evidence, Target

    Floats = NDArray[np.float64]


@runtime_checkable
class Estimator(Protocol):
    """Gives each rollout a score: higher = more responsible for the behaviour.

    Optional attributes, with their defaults:

    readouts = ("step", "rollout"): the ways in which the scores have a meaning.
    uses_target = True: False says that every target gives the same scores.
    step_scores(evidence, target) -> (S,): default is the sum of each step's rollout scores.
    control = False: True for the bars that other estimators must beat.
    """

    name: str

    def score(self, evidence: Evidence, target: Target) -> NDArray[Any]:
        """Scores, (N,), real and finite; equal scores are legal, the metrics handle ties."""
        ...


class EstimatorError(Exception):
    """An estimator did not keep the contract: what it gave, and what was expected."""


class UnknownEstimator(EstimatorError):  # noqa: N818 - it names what is wrong
    """No estimator has this name."""


class DuplicateEstimator(EstimatorError):  # noqa: N818
    """More than one distribution registers an estimator of this name."""


class BrokenEstimator(EstimatorError):  # noqa: N818
    """It can't be imported, raised an exception, or gave something that is not N finite numbers."""


READOUTS = ("step", "rollout")
DEFAULTS = {"readouts": READOUTS, "uses_target": True, "control": False}


def trait(estimator: Estimator, name: str) -> Any:
    """An optional attribute of an estimator, or its default."""
    return getattr(estimator, name, DEFAULTS[name])


def rollout_scores(estimator: Estimator, evidence: Evidence, target: Target) -> Floats:
    """The estimator's scores, checked, (N,) float64.

    Raises:
        BrokenEstimator: an exception, a wrong shape or dtype, a NaN or an infinity.
    """
    return _checked(estimator, "score", len(evidence.rollouts), evidence, target)


def step_scores(estimator: Estimator, evidence: Evidence, target: Target) -> Floats:
    """One score per step, checked, (S,) float64: the estimator's own, or the sum over the step's rollouts.

    Raises:
        BrokenEstimator: as `rollout_scores`.
    """
    import numpy as np

    steps = len(evidence.config.learning_rates)
    if hasattr(estimator, "step_scores"):
        return _checked(estimator, "step_scores", steps, evidence, target)
    scores = rollout_scores(estimator, evidence, target)
    total: Floats = np.bincount(evidence.rollouts["step"].to_numpy(), scores, steps).astype(np.float64)
    return total


def _checked(estimator: Estimator, method: str, length: int, evidence: Evidence, target: Target) -> Floats:
    import numpy as np

    label = f"estimator {estimator.name!r}: {method}()"
    try:
        scores = np.asarray(getattr(estimator, method)(evidence, target))
    except Exception as error:  # whatever a plugin raises is its own cells' failure, with the cause
        raise BrokenEstimator(f"{label} raised {type(error).__name__}: {error}") from error
    if scores.shape != (length,):
        raise BrokenEstimator(f"{label} gave shape {scores.shape}, expected ({length},)")
    if scores.dtype.kind not in "buif":
        raise BrokenEstimator(f"{label} gave dtype {scores.dtype}, expected real numbers")
    scores = scores.astype(np.float64)
    if bad := int((~np.isfinite(scores)).sum()):
        raise BrokenEstimator(f"{label} gave {bad} values of {length} that are NaN or infinite")
    return scores

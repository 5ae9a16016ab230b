"""Control `step-index`: early steps first.

    score_i = −step

A cause that was planted early is found by the calendar alone. Needs the rollout table. Within a group all
scores are equal, so it has no meaning per rollout.
"""

import numpy as np
from numpy.typing import NDArray

from ..harness.evidence import Evidence, Target


class StepIndex:
    """In steps."""

    name = "step-index"
    control = True
    uses_target = False
    readouts = ("step",)

    def score(self, evidence: Evidence, target: Target) -> NDArray[np.float64]:
        """Scores, (N,)."""
        return -evidence.rollouts["step"].to_numpy(np.float64)

    def step_scores(self, evidence: Evidence, target: Target) -> NDArray[np.float64]:
        """Scores, (S,)."""
        return -np.arange(len(evidence.config.learning_rates), dtype=np.float64)

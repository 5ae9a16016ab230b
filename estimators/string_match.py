"""Controls `string-match` and `string-match-advantage`: is the behaviour's string in the completion?

    string-match             1 if rollout i shows the behaviour, else 0
    string-match-advantage   that times A_i

Text search is free and exact, so a gradient method must tell more than who shows the behaviour, and more than
who was rewarded while showing it. They need the rollout table. They have no meaning per step.
"""

import numpy as np
from numpy.typing import NDArray

from ..harness.evidence import Evidence, Target


class StringMatch:
    """Reads the completion."""

    name = "string-match"
    control = True
    uses_target = False
    readouts = ("rollout",)

    def score(self, evidence: Evidence, target: Target) -> NDArray[np.float64]:
        """Scores, (N,), 0 or 1."""
        return np.array([evidence.behaviour_mask(i).any() for i in range(len(evidence.rollouts))], np.float64)


class StringMatchAdvantage:
    """Reads the completion and the advantage."""

    name = "string-match-advantage"
    control = True
    uses_target = False
    readouts = ("rollout",)

    def score(self, evidence: Evidence, target: Target) -> NDArray[np.float64]:
        """Scores, (N,)."""
        return StringMatch().score(evidence, target) * evidence.rollouts["advantage"].to_numpy()

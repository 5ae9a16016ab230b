"""Control `length`: the number of the completion's tokens, longer first.

A behaviour that adds words makes completions longer, and the loss counts long ones more. Needs the rollout
table. It has no meaning per step.
"""

import numpy as np
from numpy.typing import NDArray

from ..harness.evidence import Evidence, Target


class Length:
    """In tokens."""

    name = "length"
    control = True
    uses_target = False
    readouts = ("rollout",)

    def score(self, evidence: Evidence, target: Target) -> NDArray[np.float64]:
        """Scores, (N,), at least 0."""
        return evidence.rollouts["length"].to_numpy(np.float64)

"""Control `fluency`: how likely the policy found the completion.

    score_i = mean_c mean_t log π_c(y_t | prefix)

A policy that has learned the behaviour finds it likely: fluency alone predicts who shows it. The checks take
it out of a score at their own analysis checkpoint, which an estimator can't know, so this is the mean over
all. Needs the log-probabilities. It has no meaning per step.
"""

import numpy as np
from numpy.typing import NDArray

from ..harness.evidence import Evidence, Target


class Fluency:
    """In nats per token."""

    name = "fluency"
    control = True
    uses_target = False
    readouts = ("rollout",)

    def score(self, evidence: Evidence, target: Target) -> NDArray[np.float64]:
        """Scores, (N,), at most 0."""
        logprobs = np.stack([c.logprob for c in evidence.checkpoints])
        return logprobs.mean(axis=0, dtype=np.float64)

"""Control `random`: scores that know nothing, what luck looks like.

    score_i uniform in [0, 1), step scores drawn apart

Seeded by the texts of the run: the same run gets the same scores in any process, another run gets others.
Needs the rollout table.
"""

import hashlib

import numpy as np
from numpy.typing import NDArray

from ..harness.evidence import Evidence, Target


class RandomScores:
    """Never looks at a score's meaning."""

    name = "random"
    control = True
    uses_target = False

    def score(self, evidence: Evidence, target: Target) -> NDArray[np.float64]:
        """Scores, (N,)."""
        return generator(evidence, "rollout").random(len(evidence.rollouts))

    def step_scores(self, evidence: Evidence, target: Target) -> NDArray[np.float64]:
        """Scores, (S,)."""
        return generator(evidence, "step").random(len(evidence.config.learning_rates))


def generator(evidence: Evidence, purpose: str) -> np.random.Generator:
    """Seeded by the prompts and completions of the run, and by what it is for."""
    digest = hashlib.blake2b(f"random {purpose}".encode(), digest_size=16)
    for column in ("prompt", "completion"):
        for text in evidence.rollouts[column]:
            digest.update(b"\0" + str(text).encode())
    return np.random.default_rng(int.from_bytes(digest.digest(), "big"))

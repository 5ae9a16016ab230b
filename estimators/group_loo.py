"""`group-loo`: what the update loses when rollout i was never sampled.

    score_i = Σ_c ( Σ_{j in group} w_j A_j <g_j, t> − Σ_{j in group, j≠i} w_j A_j^(−i) <g_j, t> )

GRPO's advantages are relative to the group: without rollout i its siblings' advantages are others. A^(−i) is
recomputed from their rewards, and is 0 where fewer than two are left or their rewards are equal. So a rollout
with a plain reward can be responsible for what its siblings were credited with.

Source: ours, it follows from GRPO's baseline. Needs the sketches, the norms, the target,
the rewards, and how they were scaled. One letter per axis: Q groups, G rollouts of the largest of them.
"""

import numpy as np
from numpy.typing import NDArray

from ..harness.evidence import Evidence, Target

STD_EPSILON = 1e-4
"""What TRL adds to a group's standard deviation."""

Floats = NDArray[np.float64]


class GroupLOO:
    """Sums over the checkpoints at which the draw has a target."""

    name = "group-loo"

    def score(self, evidence: Evidence, target: Target) -> Floats:
        """Scores, (N,)."""
        rollouts, config = evidence.rollouts, evidence.config
        pull = np.zeros(len(rollouts))  # w_j Σ_c <g_j, t>: how far one unit of advantage moves the behaviour
        for c in target.checkpoints:
            pull += c.dot(target.sketch(c))
        pull *= config.weight

        rows, filled = members(rollouts["group"].to_numpy())
        without = advantages_without_one(rollouts["reward"].to_numpy()[rows], filled, config.scale_rewards)
        grouped = np.where(filled, pull[rows], 0.0)
        whole = (grouped * rollouts["advantage"].to_numpy()[rows]).sum(axis=1, keepdims=True)
        left = np.einsum("qij,qj->qi", without, grouped)
        scores = np.empty(len(rollouts))
        scores[rows[filled]] = (whole - left)[filled]
        return scores


def members(group: NDArray[np.generic]) -> tuple[NDArray[np.intp], NDArray[np.bool_]]:
    """Rows of each group, (Q, G), and which of these places are filled; the others repeat row 0."""
    _, index, sizes = np.unique(group, return_inverse=True, return_counts=True)
    filled = np.arange(sizes.max(initial=0)) < sizes[:, None]
    rows = np.zeros(filled.shape, np.intp)
    rows[filled] = np.argsort(index, kind="stable")
    return rows, filled


def advantages_without_one(reward: Floats, filled: NDArray[np.bool_], scale_rewards: str) -> Floats:
    """A_j^(−i) at [q, i, j], (Q, G, G): of j in its group without i; 0 for j = i and for unfilled places.

    reward: (Q, G). scale_rewards: "group" for (r − mean)/(std + 1e-4) with Bessel's correction, as TRL, or
    "none" for r − mean; ValueError otherwise.
    """
    if scale_rewards not in ("group", "none"):
        raise ValueError(f"scale_rewards={scale_rewards!r} is not supported: use 'group' or 'none'")
    left = filled[:, None, :] & ~np.eye(filled.shape[1], dtype=bool)
    count = np.maximum(left.sum(axis=2, keepdims=True), 1)
    rewards = np.broadcast_to(reward[:, None, :], left.shape)
    centred = np.where(left, rewards - (rewards * left).sum(axis=2, keepdims=True) / count, 0.0)
    if scale_rewards == "group":
        variance = (centred**2).sum(axis=2, keepdims=True) / np.maximum(count - 1, 1)
        centred = centred / (np.sqrt(variance) + STD_EPSILON)
    # Compared, not computed: equal rewards of 0.1 would leave a rounding residue.
    lowest = np.min(rewards, axis=2, keepdims=True, initial=np.inf, where=left)
    highest = np.max(rewards, axis=2, keepdims=True, initial=-np.inf, where=left)
    return np.where(highest > lowest, centred, 0.0)

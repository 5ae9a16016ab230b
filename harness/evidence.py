"""What an estimator may read of a run: rollouts, sketched gradients, checkpoints. Never the labels.

One letter per axis: N rollouts, S steps, C checkpoints, K sketch dimensions, L completion tokens. `store.py`
writes what is read here. Nothing imports torch until a model or an exact gradient is asked for.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import pandas as pd
    from torch import Tensor, nn

Floats = NDArray[np.float32]
Scope = Literal["completion", "behaviour"]

ROWS = 512
"""Rows of a sketch in memory at once: 8 MB in float32 at K = 4,096."""


class NoTarget(LookupError):  # noqa: N818 - it names what is missing, as `UnsupportedModule` does
    """This draw has no target at this checkpoint: no sampled response showed the behaviour."""


@dataclass(frozen=True)
class TrainingConfig:
    """How the trainer turned rollouts into updates."""

    group_size: int
    loss_type: str
    scale_rewards: str
    learning_rates: NDArray[np.float64]
    """(S,): that of each optimiser step."""
    weight: NDArray[np.float64]
    """(N,): w_i, with which the loss counts the rollout's mean token log-probability."""


@dataclass(frozen=True, eq=False)
class Evidence:
    """All that an estimator may read of a run."""

    rollouts: pd.DataFrame
    """N rows in the order of training: step, group (unique over the run), prompt, completion, prompt_ids,
    completion_ids, reward (total, as the trainer saw it), advantage, weight, length (tokens),
    token_logprobs (under the policy that sampled it), finish_reason (stop or length), behaviour_mask."""
    behaviour: str
    checkpoints: tuple[Checkpoint, ...]
    config: TrainingConfig

    def behaviour_mask(self, i: int) -> NDArray[np.bool_]:
        """Which of rollout i's completion tokens belong to the behaviour's string, (L,)."""
        return np.asarray(self.rollouts["behaviour_mask"].iloc[i], dtype=bool)


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """The policy after `step` optimiser steps, and the gradients of all N rollouts at it.

    g_i is the gradient of the mean log-probability of rollout i's scope tokens, by all trainable parameters.
    """

    step: int
    learning_rate: float
    """η_c: that of the last optimiser step before the checkpoint."""
    _folder: Path
    _rollouts: pd.DataFrame = field(repr=False)
    _policy: Path = field(repr=False)
    _weights: Path = field(repr=False)
    _moments: Path = field(repr=False)
    _dots: dict[tuple[bytes, Scope], Floats] = field(default_factory=dict, repr=False)

    def sketch(self, scope: Scope = "completion") -> NDArray[np.float16]:
        """Sketches of g_i/|g_i|, (N, K): times `norm` they are those of g_i. Zero rows where g_i is zero.

        The completion scope is memory-mapped; the behaviour scope, stored for few rows, is filled up here.
        """
        stored = self._array(f"{scope}-sketch")
        if scope == "completion":
            return stored
        full = np.zeros((len(self._rollouts), stored.shape[1]), stored.dtype)
        full[self._array("behaviour-rows")] = stored
        return full

    def norm(self, scope: Scope = "completion") -> Floats:
        """|g_i|, (N,): exact, before any clipping, not that of the sketch."""
        return self._all_rows(self._array(f"{scope}-norm"), scope)

    @property
    def logprob(self) -> Floats:
        """Mean log-probability of each completion's tokens (fluency), (N,), in nats."""
        return np.asarray(self._array("logprob"))

    def dot(self, vector: NDArray[Any], scope: Scope = "completion") -> Floats:
        """<g_i, v> for the sketch (K,) of a gradient v: (N,). Remembered, so that estimators share it."""
        return self.norm(scope) * self._unit_dot(vector, scope)

    def cosine(self, target: Target, scope: Scope = "completion") -> Floats:
        """cos(g_i, t) with exact norms, (N,), in [-1, 1] up to the sketch's error; 0 where g_i is zero."""
        return self._unit_dot(target.sketch(self), scope) / np.float32(target.norm(self))

    def gradients(self, scope: Scope = "completion") -> Iterator[dict[str, Tensor]]:
        """The exact g_i of each rollout in turn, per parameter: N backward passes."""
        from . import policy
        from .gradients import exact_gradients

        model, tokenizer = policy.load(self._policy, self._weights)
        for i in range(len(self._rollouts)):
            yield from exact_gradients(
                model, *policy.rows(self._rollouts.iloc[i : i + 1], scope, tokenizer.pad_token_id)
            )

    def model(self) -> nn.Module:
        """The policy itself, in eval mode."""
        from . import policy

        return policy.load(self._policy, self._weights)[0]

    def second_moment(self) -> dict[str, Tensor]:
        """Adam's exp_avg_sq of each parameter."""
        from safetensors.torch import load_file

        return load_file(self._moments)

    def _array(self, name: str) -> NDArray[Any]:
        return np.load(self._folder / f"{name}.npy", mmap_mode="r", allow_pickle=False)

    def _all_rows(self, stored: NDArray[Any], scope: Scope) -> Floats:
        if scope == "completion":
            return np.asarray(stored)
        full = np.zeros(len(self._rollouts), np.float32)
        full[self._array("behaviour-rows")] = stored
        return full

    def _unit_dot(self, vector: NDArray[Any], scope: Scope) -> Floats:
        vector = np.ascontiguousarray(vector, np.float32)
        key = (hashlib.blake2b(vector.tobytes(), digest_size=16).digest(), scope)
        if key not in self._dots:
            stored = self._array(f"{scope}-sketch")
            product = np.zeros(len(stored), np.float32)
            for i in range(0, len(stored), ROWS):
                product[i : i + ROWS] = stored[i : i + ROWS].astype(np.float32) @ vector
            self._dots[key] = self._all_rows(product, scope)
        return self._dots[key]


@dataclass(frozen=True, eq=False)
class Target:
    """One draw of the gradient t that stands for the behaviour, at each checkpoint that has one."""

    kind: str
    draw: int
    checkpoints: tuple[Checkpoint, ...]
    """Those of the evidence at which this draw has a target, in order."""
    _sketches: Mapping[int, Floats] = field(repr=False)
    _norms: Mapping[int, float] = field(repr=False)
    _responses: pd.DataFrame = field(repr=False)

    def sketch(self, c: Checkpoint) -> Floats:
        """The sketch of t, (K,), not normalised. Raises NoTarget."""
        self._require(c)
        return self._sketches[c.step]

    def norm(self, c: Checkpoint) -> float:
        """The exact |t|. Raises NoTarget."""
        self._require(c)
        return self._norms[c.step]

    def gradient(self, c: Checkpoint) -> dict[str, Tensor]:
        """The exact t, per parameter, computed on demand. Raises NoTarget."""
        from . import policy, targets

        self._require(c)
        model, tokenizer = policy.load(c._policy, c._weights)
        responses = self._responses[self._responses["step"] == c.step]
        return targets.in_context(model, responses, tokenizer.pad_token_id)

    def _require(self, c: Checkpoint) -> None:
        if c.step not in self._norms:
            raise NoTarget(
                f"draw {self.draw} has no {self.kind} target at step {c.step}, where no response showed the "
                "behaviour: iterate over target.checkpoints, which holds only those that have one"
            )

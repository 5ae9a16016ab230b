"""The gradients of a run on disk: capture them, sketch them, and open them as evidence.

One letter per axis: N rollouts, M that show the behaviour, C checkpoints, K sketch dimensions.

    rollouts/STEP/completion-sketch.npy (N, K) float16, unit rows    completion-norm.npy (N,) float32
                  behaviour-sketch.npy  (M, K) float16, unit rows    behaviour-norm.npy  (M,) float32
                  behaviour-rows.npy    (M,) which rollouts they are
                  logprob.npy           (N,) float32
    in-context-DRAW/sketch.npy (C, K)   norm.npy (C,)  float32, NaN where the draw has no target
                    responses.parquet   what was sampled

Unit rows, because gradients of a saturated policy underflow in float16. Arrays are memory-mapped, and written
and published whole (`run.published`).
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd

from .evidence import Checkpoint, Evidence, Scope, Target, TrainingConfig
from .run import Run, published

SKETCH_SEED = 0
CAPTURE_BATCH = 128
TINY = 1e-30
"""Below any norm that float32 holds with full precision; keeps the unit row of a zero gradient zero."""

Fraction = Callable[[float], None]


def captured(run: Run) -> tuple[int, ...]:
    """The checkpoints at which gradients are captured: all but θ_0, where no step has been taken."""
    return tuple(step for step in run.checkpoints if step > 0)


def capture_rollouts(run: Run, folder: Path, dimensions: int, progress: Fraction = lambda _: None) -> None:
    """Write the sketches, norms and log-probabilities of all rollouts at every captured checkpoint."""
    from . import policy
    from .gradients import per_rollout
    from .sketch import Sketch
    from .targets import shows

    steps = captured(run)
    shown = np.flatnonzero(shows(run.rollouts))
    with published(folder / "rollouts") as draft, policy.one_thread():
        for number, step in enumerate(steps):
            model, tokenizer = policy.load(run.policy, run.weights(step))
            sketch = Sketch.for_model(model, dimensions, SKETCH_SEED)
            place = draft / str(step)
            place.mkdir()
            np.save(place / "behaviour-rows.npy", shown)
            scopes: dict[Scope, pd.DataFrame] = {
                "completion": run.rollouts,
                "behaviour": run.rollouts.iloc[shown],
            }
            for scope, rollouts in scopes.items():
                size = len(rollouts)
                unit = np.lib.format.open_memmap(
                    place / f"{scope}-sketch.npy", mode="w+", dtype=np.float16, shape=(size, dimensions)
                )
                norm, logprob = np.zeros(size, np.float32), np.zeros(size, np.float32)
                for i in range(0, size, CAPTURE_BATCH):
                    batch = slice(i, i + CAPTURE_BATCH)
                    ids, mask = policy.rows(rollouts.iloc[batch], scope, tokenizer.pad_token_id)
                    gradients = per_rollout(model, ids, mask, sketch)
                    norm[batch], logprob[batch] = gradients.norm.numpy(), gradients.logprob.numpy()
                    length = gradients.norm.clamp(min=TINY)
                    unit[batch] = (gradients.sketch / length[:, None]).numpy()
                    if scope == "completion":
                        progress((number + (i + CAPTURE_BATCH) / size) / len(steps))
                unit.flush()
                np.save(place / f"{scope}-norm.npy", norm)
                if scope == "completion":
                    np.save(place / "logprob.npy", logprob)


def capture_target(run: Run, folder: Path, dimensions: int, prompts: list[str], draw: int, seed: int) -> None:
    """Write the in-context target of one draw at every captured checkpoint.

    Each checkpoint samples one response per prompt; the seed, the draw and the step decide which.
    """
    import torch

    from . import policy
    from .sketch import Sketch
    from .targets import in_context, sample_responses, shows

    steps = captured(run)
    sketches = np.full((len(steps), dimensions), np.nan, np.float32)
    norms = np.full(len(steps), np.nan, np.float32)
    sampled = []
    with published(folder / f"in-context-{draw}") as draft, policy.one_thread():
        for number, step in enumerate(steps):
            model, tokenizer = policy.load(run.policy, run.weights(step))
            fresh = int(np.random.default_rng([seed, draw, step]).integers(2**31))
            tokens = run.training["max_completion_length"]
            responses = sample_responses(model, tokenizer, prompts, run.training["behaviour"], tokens, fresh)
            sampled.append(responses.assign(step=step))
            if shows(responses).any():
                gradient = in_context(model, responses, tokenizer.pad_token_id)
                sketches[number] = Sketch.for_model(model, dimensions, SKETCH_SEED).dense(gradient).numpy()
                norms[number] = torch.linalg.vector_norm(
                    torch.stack([torch.linalg.vector_norm(g) for g in gradient.values()])
                ).item()
        np.save(draft / "sketch.npy", sketches)
        np.save(draft / "norm.npy", norms)
        pd.concat(sampled, ignore_index=True).to_parquet(draft / "responses.parquet", index=False)


def open_evidence(run: Run, folder: Path) -> Evidence:
    """What an estimator may read of the run, from the folder that `capture_rollouts` filled."""
    rates = run.steps["learning_rate"].to_numpy()
    checkpoints = tuple(
        Checkpoint(
            step=step,
            learning_rate=float(rates[step - 1]),
            _folder=folder / "rollouts" / str(step),
            _rollouts=run.rollouts,
            _policy=run.policy,
            _weights=run.weights(step),
            _moments=run.second_moments(step),
        )
        for step in captured(run)
    )
    training = run.training
    return Evidence(
        rollouts=run.rollouts,
        behaviour=training["behaviour"],
        checkpoints=checkpoints,
        config=TrainingConfig(
            group_size=training["group_size"],
            loss_type=training["loss_type"],
            scale_rewards=training["scale_rewards"],
            learning_rates=rates,
            weight=run.rollouts["weight"].to_numpy(),
        ),
    )


def open_target(evidence: Evidence, folder: Path, draw: int) -> Target:
    """One draw's in-context target, from the folder that `capture_target` filled."""
    place = folder / f"in-context-{draw}"
    sketches, norms = (np.load(place / f"{name}.npy", allow_pickle=False) for name in ("sketch", "norm"))
    has = {c: i for i, c in enumerate(evidence.checkpoints) if norms[i] > 0}
    return Target(
        kind="in-context",
        draw=draw,
        checkpoints=tuple(has),
        _sketches={c.step: sketches[i] for c, i in has.items()},
        _norms={c.step: float(norms[i]) for c, i in has.items()},
        _responses=pd.read_parquet(place / "responses.parquet"),
    )

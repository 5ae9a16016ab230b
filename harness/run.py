"""A recorded GRPO run on disk: format, writing, loading, verification.

A run is a folder:

    run.json                 schema, config and its hash, library versions, SHA-256 of every other file
    rollouts.parquet         N rows, all that an estimator may read
    labels.parquet           N rows: eligible, boosted, bonus, task_reward, decoy_boosted
    steps.parquet            S rows: learning_rate, grad_norm, clip, rng_state
    policy/                  the model's configuration and the tokenizer
    checkpoints/STEP.safetensors, STEP-second-moments.safetensors

It holds no pickle, and loading it runs no code of its own. It is published whole: written in a temporary
folder beside its place, then renamed.
"""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from tempfile import mkdtemp
from typing import Any

import numpy as np
import pandas as pd

SCHEMA = 1
LIBRARIES = ("torch", "transformers", "trl", "accelerate", "tokenizers", "numpy")


class RunError(ValueError):
    """A run is incomplete, damaged, or not what was asked for."""


@dataclass(frozen=True, eq=False)
class Run:
    """One recorded run; `load` verifies it."""

    folder: Path
    manifest: Mapping[str, Any]

    @classmethod
    def load(cls, folder: Path, config: Mapping[str, Any] | None = None) -> Run:
        """Read and verify a run: files as hashed, N = steps × groups × G, checkpoints finite, same config.

        Raises RunError, in one sentence with what is wrong and the way out.
        """
        try:
            manifest = json.loads((folder / "run.json").read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise RunError(f"{folder} is not a recorded run: {error}") from error
        if not isinstance(manifest, dict) or not isinstance(manifest.get("schema"), int):
            raise RunError(f"{folder} is not a recorded run: run.json has no schema number")
        if manifest["schema"] > SCHEMA:
            raise RunError(
                f"{folder} has schema {manifest['schema']}, newer than {SCHEMA}: update behaviortrace"
            )
        run = cls(folder, manifest)
        run._verify(config)
        return run

    @property
    def config(self) -> Mapping[str, Any]:
        """What the run was made with."""
        return self.manifest["config"]

    @property
    def training(self) -> Mapping[str, Any]:
        """What the trainer was told: loss_type, scale_rewards, group_size, max_completion_length, …"""
        return self.manifest["training"]

    @property
    def checkpoints(self) -> tuple[int, ...]:
        """Steps after which the policy was kept, in order; 0 is the policy that training started from."""
        return tuple(self.manifest["checkpoints"])

    @property
    def probe_rates(self) -> dict[int, float]:
        """Share of probe replies that show the behaviour, by checkpoint, in [0, 1]."""
        return {int(step): rate for step, rate in self.manifest["probe_rates"].items()}

    @cached_property
    def rollouts(self) -> pd.DataFrame:
        """N rows in the order of training."""
        return pd.read_parquet(self.folder / "rollouts.parquet")

    @cached_property
    def labels(self) -> pd.DataFrame | None:
        """N rows; None for a run whose causes nobody planted."""
        file = self.folder / "labels.parquet"
        return pd.read_parquet(file) if file.exists() else None

    @cached_property
    def steps(self) -> pd.DataFrame:
        """S rows."""
        return pd.read_parquet(self.folder / "steps.parquet")

    @property
    def policy(self) -> Path:
        """Folder of the model's configuration and the tokenizer."""
        return self.folder / "policy"

    def weights(self, step: int) -> Path:
        """File of the policy's parameters after `step` steps."""
        return self.folder / "checkpoints" / f"{step}.safetensors"

    def second_moments(self, step: int) -> Path:
        """File of Adam's exp_avg_sq of each parameter after `step` steps."""
        return self.folder / "checkpoints" / f"{step}-second-moments.safetensors"

    def _verify(self, config: Mapping[str, Any] | None) -> None:
        def fail(what: str) -> RunError:
            return RunError(f"the run in {self.folder} {what}: delete the folder to make it anew")

        for name, digest in self.manifest["files"].items():
            file = self.folder / name
            if not file.is_file():
                raise fail(f"lacks {name}")
            if _sha256(file) != digest:
                raise fail(f"is damaged, {name} differs from what was recorded")
        if config_hash(self.config) != self.manifest["config_hash"]:
            raise fail("is damaged, its config differs from its config hash")
        if config is not None and config_hash(config) != self.manifest["config_hash"]:
            raise fail("was made with another config")
        training = self.training
        expected = training["steps"] * training["groups"] * training["group_size"]
        if len(self.rollouts) != expected or len(self.steps) != training["steps"]:
            raise fail(
                f"is not whole, {len(self.rollouts)} rollouts of {expected} in {len(self.steps)} steps of "
                f"{training['steps']}"
            )
        for step in self.checkpoints:
            if f"checkpoints/{step}.safetensors" not in self.manifest["files"]:
                raise fail(f"lacks the checkpoint of step {step}")
            if not _finite(self.weights(step)):
                raise fail(f"diverged, the checkpoint of step {step} has values that are not finite")


def write(
    folder: Path,
    *,
    rollouts: pd.DataFrame,
    labels: pd.DataFrame | None,
    steps: pd.DataFrame,
    config: Mapping[str, Any],
    training: Mapping[str, Any],
    checkpoints: list[int],
    probe_rates: Mapping[int, float],
) -> None:
    """Write the tables and run.json into a folder that holds policy/ and checkpoints/ already."""
    rollouts.to_parquet(folder / "rollouts.parquet", index=False)
    steps.to_parquet(folder / "steps.parquet", index=False)
    if labels is not None:
        labels.to_parquet(folder / "labels.parquet", index=False)
    files = sorted(file for file in folder.rglob("*") if file.is_file())
    manifest = {
        "schema": SCHEMA,
        "config": dict(config),
        "config_hash": config_hash(config),
        "training": dict(training),
        "checkpoints": checkpoints,
        "probe_rates": {str(step): rate for step, rate in probe_rates.items()},
        "versions": versions(),
        "files": {file.relative_to(folder).as_posix(): _sha256(file) for file in files},
    }
    (folder / "run.json").write_text(json.dumps(manifest, indent=1), encoding="utf-8")


@contextmanager
def published(folder: Path) -> Iterator[Path]:
    """A temporary folder beside `folder` that takes its place when the block ends well, and else vanishes."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    draft = Path(mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        yield draft
        if folder.exists():
            shutil.rmtree(folder)
        draft.rename(folder)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def config_hash(config: Mapping[str, Any]) -> str:
    """Hash of a configuration of plain types; the order of its keys and tuples against lists don't matter."""
    return hashlib.sha256(json.dumps(config, sort_keys=True).encode()).hexdigest()


def versions() -> dict[str, str]:
    """Of the libraries that decide what a run comes out as."""
    return {library: version(library) for library in LIBRARIES}


def _sha256(file: Path) -> str:
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def _finite(weights: Path) -> bool:
    from safetensors.numpy import load_file

    return all(np.isfinite(values).all() for values in load_file(weights).values())

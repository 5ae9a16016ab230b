"""The disk cache of runs and gradients: what is there, what is missing, and how it is made.

    base/DIGEST/                     the warm-started policy
    runs/SCENARIO-SEED-DIGEST/       recorded runs (`run.py`)
    gradients/SCENARIO-SEED-DIGEST/  their gradients and targets (`store.py`)

DIGEST covers the profile, the versions of the libraries, the arithmetic, and the source of the modules that
decide the content: changed code never meets old data. Nothing here imports torch until something is made.
"""

from __future__ import annotations

import hashlib
import platform
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict
from functools import cached_property
from pathlib import Path

from filelock import FileLock

from . import run, store
from .profiles import Profile
from .run import Run, config_hash

TRAINING_SOURCES = ("tasks", "plants", "policy", "run", "grpo")
GRADIENT_SOURCES = (*TRAINING_SOURCES, "gradients", "sketch", "targets", "store")

REPRODUCIBLE = {"ATEN_CPU_CAPABILITY": "default", "MKL_CBWR": "COMPATIBLE", "OMP_NUM_THREADS": "1"}
"""Arithmetic that is the same to the last bit on every x86-64 processor: no instructions that only some have,
one thread. GRPO is chaotic: a sum rounded otherwise flips a sampled token, and from there it is another run.
With AVX2 in place of AVX-512, and the same seeds, 42 of the tiny profile's 138 verdicts differed.
"""

Report = Callable[[str, float], None]
"""Takes a stage (`training`, `gradients`, `targets`) and the fraction of it that is done."""


def quiet(stage: str, fraction: float) -> None:
    """Reports nothing."""


class Cache:
    """The cache of one profile in the folder `root`."""

    def __init__(self, root: Path, profile: Profile) -> None:
        self.root, self.profile = root, profile

    def run_folder(self, scenario: str, seed: int) -> Path:
        """Where the run of (scenario, seed) is, or will be."""
        return self.root / "runs" / f"{scenario}-{seed}-{self._training_digest}"

    def gradient_folder(self, scenario: str, seed: int) -> Path:
        """Where its gradients are, or will be."""
        return self.root / "gradients" / f"{scenario}-{seed}-{self._gradient_digest}"

    def complete(self, scenario: str, seed: int, draws: int) -> bool:
        """Whether the run, its gradients and that many target draws are all there."""
        gradients = self.gradient_folder(scenario, seed)
        return (
            self.run_folder(scenario, seed).exists()
            and (gradients / "rollouts").exists()
            and all((gradients / f"in-context-{draw}").exists() for draw in range(draws))
        )

    def make(self, scenario: str, seed: int, draws: int, report: Report = quiet) -> None:
        """Train and capture what is missing, in this process; others that want the same wait.

        Raises RunError for a run that is damaged or did not come out whole.
        """
        from . import grpo

        base, folder = self.root / "base" / self._training_digest, self.run_folder(scenario, seed)
        with self._lock(base):
            if not base.exists():
                report("warm start", 0.0)
                with run.published(base) as draft:
                    grpo.warm_start(self.profile, draft)
        gradients = self.gradient_folder(scenario, seed)
        with self._lock(folder):
            if not folder.exists():
                with run.published(folder) as draft:
                    grpo.train(self.profile, scenario, seed, base, draft, lambda f: report("training", f))
            recorded = self.run(scenario, seed)
            dimensions = self.profile.sketch_dimensions
            if not (gradients / "rollouts").exists():
                store.capture_rollouts(recorded, gradients, dimensions, lambda f: report("gradients", f))
            asked = grpo.prompts(self.profile, "probes", self.profile.target_probes, seed=0)
            for draw in range(draws):
                report("targets", draw / draws)
                if not (gradients / f"in-context-{draw}").exists():
                    store.capture_target(recorded, gradients, dimensions, asked, draw, seed)

    def run(self, scenario: str, seed: int) -> Run:
        """The recorded run, verified. Raises RunError."""
        return Run.load(self.run_folder(scenario, seed), self.profile.config(scenario, seed))

    def null_rates(self) -> list[float]:
        """The final probe rate of every null run at hand: how far an unpaid behaviour drifts."""
        folders = sorted((self.root / "runs").glob(f"null-*-{self._training_digest}"))
        runs = [Run.load(folder) for folder in folders]
        return [recorded.probe_rates[recorded.checkpoints[-1]] for recorded in runs]

    @cached_property
    def _training_digest(self) -> str:
        return self._digest(TRAINING_SOURCES)

    @cached_property
    def _gradient_digest(self) -> str:
        return self._digest(GRADIENT_SOURCES)

    def _digest(self, modules: tuple[str, ...]) -> str:
        sources = {m: _source_hash(Path(__file__).with_name(f"{m}.py")) for m in modules}
        parts = {
            "profile": asdict(self.profile),
            "versions": run.versions(),
            "sources": sources,
            "arithmetic": [platform.machine(), REPRODUCIBLE],
        }
        return config_hash(parts)[:12]

    @contextmanager
    def _lock(self, folder: Path) -> Iterator[None]:
        locks = self.root / "locks"
        locks.mkdir(parents=True, exist_ok=True)
        with FileLock(locks / f"{folder.name}.lock"):
            yield


def _source_hash(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()

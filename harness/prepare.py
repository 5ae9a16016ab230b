"""Makes what is missing in the cache, in processes of one torch thread each.

The parent, `prepare`, hands out jobs; `python -m behaviortrace.harness.prepare` is a worker. A worker reads
one job per line from its standard input and answers with lines of JSON: progress, then done or an error.
"""

from __future__ import annotations

import json
import os
import queue
import subprocess
import sys
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path

from filelock import FileLock

from .cache import REPRODUCIBLE, Cache
from .profiles import PROFILES, Profile

STAGES = {
    "warm start": (0.0, 0.0),
    "training": (0.0, 0.35),
    "gradients": (0.35, 0.6),
    "targets": (0.95, 0.05),
}
"""Where each stage of a job begins, and its share of the job's time, as measured on the tiny profile."""


class PrepareError(RuntimeError):
    """A run could not be made; one sentence says which and why."""


@dataclass(frozen=True)
class Job:
    """One run with its gradients and target draws."""

    scenario: str
    seed: int
    draws: int

    @property
    def name(self) -> str:
        """For people."""
        return f"{self.scenario} seed {self.seed}"


@dataclass(frozen=True)
class Progress:
    """How far one job is: stage is `warm start`, `training`, `gradients` or `targets`, fraction in [0, 1]."""

    job: str
    stage: str
    fraction: float

    @property
    def done(self) -> float:
        """Of the whole job, in [0, 1]."""
        start, share = STAGES[self.stage]
        return start + share * min(self.fraction, 1.0)


def prepare(
    profile: Profile,
    wanted: Iterable[tuple[str, int]],
    draws: int,
    root: Path,
    on_progress: Callable[[Progress], None] = lambda _: None,
) -> None:
    """Train and capture whatever (scenario, seed) in `wanted` still lacks; returns at once if nothing does.

    One process per core, one torch thread each: tiny models are slower with more. A second caller waits.

    Raises:
        PrepareError: a worker failed; the cache keeps what was complete.
    """
    cache = Cache(root, profile)

    def missing() -> list[Job]:
        return [Job(*pair, draws) for pair in wanted if not cache.complete(*pair, draws)]

    wanted = list(wanted)
    if not missing():
        return
    root.mkdir(parents=True, exist_ok=True)
    with FileLock(root / f"prepare-{profile.name}.lock"):
        jobs: queue.SimpleQueue[Job] = queue.SimpleQueue()
        todo = missing()
        for job in todo:
            jobs.put(job)
        workers: list[subprocess.Popen[str]] = []
        with ThreadPoolExecutor(_cores()) as pool:
            hands = range(min(len(todo), _cores()))
            try:
                list(pool.map(lambda _: _hand_out(jobs, profile, root, on_progress, workers), hands))
            except BaseException:  # an interruption must not wait for the other workers
                for worker in workers:
                    worker.kill()
                raise


def _cores() -> int:
    """Those that this process may use, where the system tells."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def _hand_out(
    jobs: queue.SimpleQueue[Job],
    profile: Profile,
    root: Path,
    on_progress: Callable[[Progress], None],
    workers: list[subprocess.Popen[str]],
) -> None:
    """Start a worker, note it in `workers`, and give it jobs until none is left."""
    command = [sys.executable, "-W", "ignore", "-m", __spec__.name, profile.name, str(root)]
    settings = REPRODUCIBLE | {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
    log = root / f"worker-{os.getpid()}.log"
    with (
        log.open("a", encoding="utf-8") as stderr,
        subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            env={**os.environ, **settings},
        ) as worker,
    ):
        workers.append(worker)
        assert worker.stdin is not None
        assert worker.stdout is not None
        while not jobs.empty():
            try:
                job = jobs.get_nowait()
            except queue.Empty:  # another thread took the last one
                return
            # A dead worker shows when we read from it. Not buffered, so that closing has nothing to send.
            with suppress(BrokenPipeError):
                os.write(worker.stdin.fileno(), f"{json.dumps(asdict(job))}\n".encode())
            _follow(worker.stdout, job, log, on_progress)


def _follow(answers: Iterable[str], job: Job, log: Path, on_progress: Callable[[Progress], None]) -> None:
    for line in answers:
        answer = json.loads(line)
        if "error" in answer:
            raise PrepareError(f"{job.name} could not be made: {answer['error']}; details are in {log}")
        if "done" in answer:
            return
        on_progress(Progress(job.name, **answer))
    raise PrepareError(f"{job.name} could not be made: the worker process died; details are in {log}")


def _work(profile: Profile, root: Path, jobs: Iterable[str]) -> None:
    """The worker: answers on standard output, everything else that is printed goes to standard error."""
    answers, sys.stdout = sys.stdout, sys.stderr

    def answer(**fields: object) -> None:
        print(json.dumps(fields), file=answers, flush=True)

    cache = Cache(root, profile)
    for line in jobs:
        job = Job(**json.loads(line))
        try:
            cache.make(
                job.scenario,
                job.seed,
                job.draws,
                lambda stage, fraction: answer(stage=stage, fraction=round(fraction, 4)),
            )
        except Exception as error:
            answer(error=f"{type(error).__name__}: {error}")
            raise
        answer(done=True)


def main(arguments: Sequence[str]) -> None:
    """Run a worker for the profile and the cache folder given as arguments."""
    name, root = arguments
    _work(PROFILES[name], Path(root), sys.stdin)


if __name__ == "__main__":
    main(sys.argv[1:])

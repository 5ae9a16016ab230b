"""Worker processes and the cache: made once, made whole, and a failure is one sentence."""

import json
import os
import platform
import shutil
import signal
import subprocess
import sys
import threading
import time
from dataclasses import asdict

import pytest
import torch

from behaviortrace.harness import prepare, profiles, run
from behaviortrace.harness.cache import Cache
from behaviortrace.harness.prepare import PrepareError, Progress

SMOKE = profiles.PROFILES["smoke"]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """A cache with one run and two draws, and the progress that was reported."""
    root, seen = tmp_path_factory.mktemp("cache"), []
    prepare.prepare(SMOKE, [("window", 0)], 2, root, seen.append)
    return root, seen


@pytest.fixture(scope="module")
def root(made):
    return made[0]


def no_process(*_, **__):
    raise AssertionError("a process was started")


def test_nothing_to_do_starts_no_process(root, monkeypatch):
    monkeypatch.setattr(subprocess, "Popen", no_process)
    prepare.prepare(SMOKE, [("window", 0)], 2, root)
    prepare.prepare(SMOKE, [("window", 0)], 1, root)
    with pytest.raises(AssertionError, match="a process was started"):
        prepare.prepare(SMOKE, [("window", 0)], 3, root)


OTHER_PROCESSOR = {
    "ATEN_CPU_CAPABILITY": "avx2",
    "MKL_ENABLE_INSTRUCTIONS": "SSE4_2",
    "ONEDNN_MAX_CPU_ISA": "SSE41",
    "NPY_DISABLE_CPU_FEATURES": "AVX512F AVX512CD AVX512_SKX AVX512_CLX AVX512_CNL AVX512_ICL",
    "OMP_NUM_THREADS": "2",
}
"""Makes the libraries compute as if this processor lacked what it has."""


@pytest.fixture
def other_processor(monkeypatch):
    for name, value in OTHER_PROCESSOR.items():
        monkeypatch.setenv(name, value)


def content(root):
    """The run's manifest, which has the hashes of its files, and the bytes of its gradients."""
    cache = Cache(root, SMOKE)
    gradients = cache.gradient_folder("window", 0)
    files = {str(path.relative_to(gradients)): path.read_bytes() for path in gradients.rglob("*.npy")}
    return cache.run("window", 0).manifest, files


@pytest.mark.skipif(platform.machine() not in ("x86_64", "AMD64"), reason="promised for x86-64")
def test_another_processor_makes_the_same_run(root, tmp_path, other_processor):
    prepare.prepare(SMOKE, [("window", 0)], 2, tmp_path)
    assert content(tmp_path) == content(root)
    assert len(content(root)[1]) > 8


@pytest.mark.skipif(torch.backends.cpu.get_cpu_capability() == "DEFAULT", reason="has no other instructions")
def test_without_the_common_arithmetic_it_would_not(root, tmp_path, monkeypatch):
    monkeypatch.setattr(prepare, "REPRODUCIBLE", {"OMP_NUM_THREADS": "1"})
    prepare.prepare(SMOKE, [("window", 0)], 2, tmp_path)
    assert content(tmp_path)[0] != content(root)[0]


def test_progress_only_grows(made):
    _, seen = made
    assert seen[0].stage == "warm start"
    assert {progress.stage for progress in seen} == set(prepare.STAGES)
    done = [progress.done for progress in seen]
    assert done == sorted(done)
    assert 0.0 <= min(done) <= max(done) <= 1.0


def test_a_new_draw_keeps_what_was_there(root, tmp_path):
    copy = shutil.copytree(root, tmp_path / "cache")
    cache = Cache(copy, SMOKE)
    before = {path: path.stat().st_mtime_ns for path in cache.gradient_folder("window", 0).rglob("*.npy")}
    assert not cache.complete("window", 0, draws=3)
    cache.make("window", 0, draws=3)
    assert cache.complete("window", 0, draws=3)
    assert {path: path.stat().st_mtime_ns for path in before} == before


def test_a_failing_worker_gives_one_sentence_and_loses_nothing(root, tmp_path):
    copy = shutil.copytree(root, tmp_path / "cache")
    base = next((copy / "base").iterdir())
    (base / "policy.safetensors").write_bytes(b"garbage")
    with pytest.raises(
        PrepareError, match=r"^decoy seed 0 could not be made: \w+: .*details are in"
    ) as caught:
        prepare.prepare(SMOKE, [("window", 0), ("decoy", 0)], 2, copy)
    assert "\n" not in str(caught.value)
    cache = Cache(copy, SMOKE)
    assert cache.complete("window", 0, 2)
    assert not cache.complete("decoy", 0, 2)
    assert [path.name for path in (copy / "runs").iterdir()] == [cache.run_folder("window", 0).name]
    (log,) = copy.glob("*.log")
    assert "Traceback" in log.read_text()


@pytest.mark.parametrize("slow", [False, True])
def test_a_dying_worker_gives_one_sentence(tmp_path, monkeypatch, slow):
    monkeypatch.setattr(sys, "executable", shutil.which("true"))
    if slow:  # it is dead before it gets its job
        monkeypatch.setattr(prepare, "asdict", lambda job: time.sleep(0.5) or asdict(job))
    with pytest.raises(PrepareError, match="window seed 0 could not be made: the worker process died"):
        prepare.prepare(SMOKE, [("window", 0)], 1, tmp_path)


def test_an_interruption_leaves_nothing_half_made(root, tmp_path):
    """The worker is killed while it trains; what it has begun is not taken for a run."""
    shutil.copytree(root / "base", tmp_path / "base")
    job = json.dumps({"scenario": "window", "seed": 0, "draws": 1})
    command = [sys.executable, "-W", "ignore", "-m", "behaviortrace.harness.prepare", "smoke", str(tmp_path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as worker:
        print(job, file=worker.stdin, flush=True)
        for line in worker.stdout:
            if json.loads(line)["stage"] == "training":
                worker.kill()
                break
    cache = Cache(tmp_path, SMOKE)
    assert not cache.run_folder("window", 0).exists()
    cache.make("window", 0, draws=1)
    assert cache.complete("window", 0, draws=1)


PARENT = """
import sys
from pathlib import Path
from behaviortrace.harness.prepare import PROFILES, prepare

show = lambda progress: print(progress.stage, flush=True)
prepare(PROFILES["smoke"], [("window", 0), ("window", 1), ("decoy", 1)], 2, Path(sys.argv[1]), show)
"""


def test_an_interrupted_session_takes_its_workers_with_it(root, tmp_path):
    """Only the parent gets the signal, as from a CI that cancels; a terminal would signal all of them."""
    copy = shutil.copytree(root, tmp_path / "cache")
    command = [sys.executable, "-c", PARENT, str(copy)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True
    ) as parent:
        next(stage for stage in parent.stdout if stage == "training\n")
        parent.send_signal(signal.SIGINT)
        _, errors = parent.communicate(timeout=20)
    assert "KeyboardInterrupt" in errors
    with pytest.raises(ProcessLookupError):
        os.killpg(parent.pid, 0)
    cache = Cache(copy, SMOKE)
    assert [path.name for path in (copy / "runs").glob("[!.]*")] == [cache.run_folder("window", 0).name]
    assert cache.complete("window", 0, draws=2)


def test_two_makers_of_one_run_train_it_once(tmp_path, monkeypatch):
    trained = []
    published = run.published

    def counted(folder):
        trained.append(folder.name)
        return published(folder)

    monkeypatch.setattr(run, "published", counted)
    caches = [Cache(tmp_path, SMOKE) for _ in range(2)]
    threads = [threading.Thread(target=cache.make, args=("window", 0, 1)) for cache in caches]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(trained) == len(set(trained)) == 2  # the warm start and the run


def test_code_profile_and_versions_decide_the_place(root, monkeypatch):
    from dataclasses import replace

    place = Cache(root, SMOKE).run_folder("window", 0)
    assert Cache(root, SMOKE).run_folder("window", 0) == place
    assert Cache(root, replace(SMOKE, learning_rate=1e-3)).run_folder("window", 0) != place
    monkeypatch.setattr(run, "versions", lambda: {"torch": "0"})
    assert Cache(root, SMOKE).run_folder("window", 0) != place
    monkeypatch.undo()
    monkeypatch.setattr("behaviortrace.harness.cache._source_hash", lambda file: "changed")
    assert Cache(root, SMOKE).run_folder("window", 0) != place


def test_progress_adds_up():
    assert sum(share for _, share in prepare.STAGES.values()) == pytest.approx(1.0)
    assert Progress("job", "targets", 1.0).done == pytest.approx(1.0)

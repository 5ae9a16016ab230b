"""One short recorded run, shared by the tests that only read it."""

from dataclasses import replace

import pytest

from behaviortrace.harness import grpo, run, store
from behaviortrace.harness.profiles import PROFILES
from behaviortrace.harness.run import Run


@pytest.fixture(scope="session")
def smoke():
    """A profile that trains in a second, with sketches that are accurate to some per cent."""
    return replace(PROFILES["smoke"], steps=6, checkpoints=(0, 3, 6), sketch_dimensions=2048)


@pytest.fixture(scope="session")
def recorded(smoke, tmp_path_factory):
    """Its run on `decoy`."""
    folder = tmp_path_factory.mktemp("recorded")
    (folder / "base").mkdir()
    grpo.warm_start(smoke, folder / "base")
    with run.published(folder / "run") as draft:
        grpo.train(smoke, "decoy", 0, folder / "base", draft)
    return Run.load(folder / "run", smoke.config("decoy", 0))


@pytest.fixture(scope="session")
def gradients(smoke, recorded, tmp_path_factory):
    """The folder of its gradients and of two target draws."""
    folder = tmp_path_factory.mktemp("gradients")
    store.capture_rollouts(recorded, folder, smoke.sketch_dimensions)
    probes = grpo.prompts(smoke, "probes", 64, seed=0)
    for draw in range(2):
        store.capture_target(recorded, folder, smoke.sketch_dimensions, probes, draw, seed=0)
    return folder

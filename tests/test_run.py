"""A run on disk is whole or refused, and never half written."""

import json
import shutil

import numpy as np
import pandas as pd
import pytest
from safetensors.numpy import load_file, save_file

from behaviortrace.harness import run
from behaviortrace.harness.run import Run, RunError


@pytest.fixture
def copy(recorded, tmp_path):
    return shutil.copytree(recorded.folder, tmp_path / "run")


def rewrite(folder, **changes):
    """Change the manifest, and hash the files anew: as if the run had been recorded like that."""
    manifest = json.loads((folder / "run.json").read_text())
    manifest["files"] = {name: run._sha256(folder / name) for name in manifest["files"]}
    (folder / "run.json").write_text(json.dumps(manifest | changes))


def test_every_file_is_guarded(recorded, copy):
    files = {f.relative_to(recorded.folder).as_posix() for f in recorded.folder.rglob("*") if f.is_file()}
    assert files - {"run.json"} == set(recorded.manifest["files"])
    for name in sorted(files - {"run.json"}):
        intact = (copy / name).read_bytes()
        changed = bytearray(intact)
        changed[len(changed) // 2] ^= 1
        (copy / name).write_bytes(changed)
        with pytest.raises(RunError, match=f"is damaged, {name} differs"):
            Run.load(copy)
        (copy / name).unlink()
        with pytest.raises(RunError, match=f"lacks {name}"):
            Run.load(copy)
        (copy / name).write_bytes(intact)
    Run.load(copy)


def test_loading_never_unpickles(recorded):
    suffixes = {file.suffix for file in recorded.folder.rglob("*") if file.is_file()}
    assert suffixes == {".json", ".parquet", ".safetensors"}


def test_another_config_is_refused(recorded, smoke, copy):
    with pytest.raises(RunError, match="made with another config"):
        Run.load(copy, smoke.config("decoy", 1))
    rewrite(copy, config=smoke.config("window", 0))
    with pytest.raises(RunError, match="differs from its config hash"):
        Run.load(copy)


def test_missing_rollouts_are_refused(recorded, copy):
    recorded.rollouts.iloc[:-1].to_parquet(copy / "rollouts.parquet")
    rewrite(copy)
    with pytest.raises(RunError, match=r"not whole, 143 rollouts of 144"):
        Run.load(copy)


def test_labels_for_every_rollout(recorded):
    assert len(recorded.labels) == len(recorded.rollouts)


def test_a_diverged_checkpoint_is_refused(copy):
    file = copy / "checkpoints" / "3.safetensors"
    weights = load_file(file)
    weights["model.norm.weight"][0] = np.nan
    save_file(weights, file)
    rewrite(copy)
    with pytest.raises(RunError, match="step 3 has values that are not finite"):
        Run.load(copy)


def test_a_missing_checkpoint_is_refused(copy):
    rewrite(copy, checkpoints=[0, 3, 5, 6])
    with pytest.raises(RunError, match="lacks the checkpoint of step 5"):
        Run.load(copy)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("{", "is not a recorded run"),
        ("[]", "no schema number"),
        ("{}", "no schema number"),
        ('{"schema": 99}', "newer than 1: update behaviortrace"),
    ],
)
def test_another_file_is_not_taken_for_a_run(tmp_path, text, sentence):
    (tmp_path / "run.json").write_text(text)
    with pytest.raises(RunError, match=sentence):
        Run.load(tmp_path)


def test_a_folder_without_manifest_is_not_a_run(tmp_path):
    with pytest.raises(RunError, match="is not a recorded run"):
        Run.load(tmp_path / "nothing")


def test_nothing_is_published_when_writing_fails(tmp_path):
    def fail():
        with run.published(tmp_path / "run") as draft:
            (draft / "half").write_text("written")
            raise OSError("disk full")

    with pytest.raises(OSError, match="disk full"):
        fail()
    assert list(tmp_path.iterdir()) == []


def test_what_is_published_takes_the_place_of_what_was_there(tmp_path):
    for text in ("old", "new"):
        with run.published(tmp_path / "run") as draft:
            (draft / "file").write_text(text)
    assert [path.name for path in tmp_path.iterdir()] == ["run"]
    assert (tmp_path / "run" / "file").read_text() == "new"


def test_the_rng_state_comes_back_as_it_was(recorded):
    states = recorded.steps["rng_state"]
    assert isinstance(states, pd.Series)
    assert {len(state) for state in states} == {5056}  # of torch's CPU generator

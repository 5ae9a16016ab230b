"""The results file gives back what was written, and refuses what it doesn't know."""

import json
import math
import subprocess
from pathlib import Path

import pytest

from behaviortrace.harness import results
from behaviortrace.harness.results import SCHEMA, Condition, Result, ResultsError

RESULT = Result(
    check="beats-fluency",
    estimator="gas",
    scenario="decoy",
    readout="rollout",
    verdict="fail",
    statement="gas on decoy (rollout): AUC 0.54 naïve ✓",
    label="behaviour",
    value=0.54,
    low=0.5,
    high=0.6,
    bar=0.5,
    n=120,
    per_seed={"0": 0.5, "1": 0.58},
    conditions=[Condition("raw AUC", "fail", 0.54, 0.5, 0.6, 0.5, False, 120, {"0": 0.5, "1": None})],
    detail={"auc": [0.54, None, 0.6]},
    seconds=0.1,
)


def test_what_is_written_is_read(tmp_path):
    file = tmp_path / "results.json"
    results.write(file, [RESULT.record()], results.environment(), {"seeds": (0, 1)})
    content = results.read(file)
    assert content["results"] == [RESULT]
    assert content["config"] == {"seeds": [0, 1]}
    assert [path.name for path in tmp_path.iterdir()] == ["results.json"]


def test_nan_and_infinity_become_null(tmp_path):
    file = tmp_path / "results.json"
    record = RESULT.record() | {"value": math.nan, "detail": {"auc": [math.inf, 0.5]}}
    results.write(file, [record], {}, {})
    (written,) = json.loads(file.read_text())["results"]
    assert written["value"] is None
    assert written["detail"] == {"auc": [None, 0.5]}


def test_a_failed_write_leaves_the_old_file(tmp_path):
    file = tmp_path / "results.json"
    results.write(file, [RESULT.record()], {}, {})
    with pytest.raises(TypeError):
        results.write(file, [{"statement": object()}], {}, {})
    assert results.read(file)["results"] == [RESULT]
    assert len(list(tmp_path.iterdir())) == 1


def test_a_disk_that_fails_leaves_no_draft(tmp_path, monkeypatch):
    file = tmp_path / "results.json"
    results.write(file, [RESULT.record()], {}, {})

    def full(*_):
        raise OSError("disk full")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(OSError, match="disk full"):
        results.write(file, [], {}, {})
    assert results.read(file)["results"] == [RESULT]
    assert list(tmp_path.iterdir()) == [file]


def whole(records):
    return json.dumps({"schema": SCHEMA, "environment": {}, "config": {}, "results": records})


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("not json", "is not a results file"),
        ("[]", "has no schema number"),
        ('{"schema": 999}', f"has schema 999, newer than {SCHEMA}: update behaviortrace"),
        ('{"schema": 1}', f"has schema 1, older than {SCHEMA}: make it anew"),
        (f'{{"schema": {SCHEMA}}}', f"is not a results file of schema {SCHEMA}: 'environment'"),
        (whole([{"check": "x"}]), f"is not a results file of schema {SCHEMA}"),
        (whole([RESULT.record() | {"verdict": "fine"}]), "'fine' is not one of the verdicts pass, fail,"),
        (whole([3]), f"is not a results file of schema {SCHEMA}"),
    ],
)
def test_another_file_is_refused_in_one_sentence(tmp_path, text, sentence):
    file = tmp_path / "results.json"
    file.write_text(text)
    with pytest.raises(ResultsError, match=sentence):
        results.read(file)
    with pytest.raises(ResultsError, match="is not a results file"):
        results.read(tmp_path / "missing.json")


def test_the_environment_names_versions_and_commit(monkeypatch):
    environment = results.environment()
    assert {"torch", "trl", "transformers", "behaviortrace"} <= environment["versions"].keys()
    assert environment["commit"] is None or len(environment["commit"].rstrip("+")) == 40

    def no_git(*_, **__):
        raise FileNotFoundError("git")

    monkeypatch.setattr(subprocess, "run", no_git)
    assert results.environment()["commit"] is None

"""The plugin end to end, on the smoke profile: what a user sees, and what other people's suites don't."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from behaviortrace.harness import results

ROOT = Path(__file__).parents[1]
SENTENCE_MARKERS = (" on window (", " on decoy (")


def run(*arguments, cwd=ROOT, path=(), flags=()):
    """Pytest in a process of its own: (exit code, output)."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": os.pathsep.join(map(str, path))}
    environment.pop("PYTEST_ADDOPTS", None)
    command = [sys.executable, *flags, "-m", "pytest", "-p", "no:cacheprovider", *map(str, arguments)]
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True)
    return done.returncode, done.stdout + done.stderr


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def smoke(cache):
    """Pytest on the benchmarks, with the smoke profile and a cache that the module shares."""

    def smoke(*arguments, **how):
        return run("benchmarks/", "--bt-profile=smoke", f"--bt-cache-dir={cache}", *arguments, **how)

    return smoke


@pytest.fixture(scope="module")
def first(smoke, tmp_path_factory):
    """The first session: (exit code, output, results)."""
    file = tmp_path_factory.mktemp("first") / "results.json"
    code, output = smoke("--estimator=gas,fluency,random", "--bt-seeds=0-1", f"--bt-results={file}")
    return code, output, results.read(file)


def cells(content):
    return {(r.check, r.estimator, r.scenario, r.readout): r for r in content["results"]}


def comparable(content):
    return {cell: {**r.record(), "seconds": None} for cell, r in cells(content).items()}


def test_the_table_is_the_last_thing_before_the_closing_line(first):
    code, output, _ = first
    assert code == 1, output  # smoke runs establish nothing
    table = output.index("profile smoke, seeds 0, 1, 5 target draws")
    assert output.rindex("short test summary info") < table
    assert output.rstrip().splitlines()[-1].strip("= ").startswith(("2", "1")), output[-300:]
    rows = [
        line.split()[:2] for line in output[table:].splitlines() if " window " in line or " decoy " in line
    ]
    assert rows[:6] == [[name, s] for name in ("gas", "fluency", "random") for s in ("window", "decoy")]


def test_every_cell_is_judged_and_recorded(first):
    _, _, content = first
    # 7 cells per estimator and scenario: two readouts for two checks, one for three.
    assert len(cells(content)) == 3 * 2 * 7
    assert {r.verdict for r in content["results"]} <= {"pass", "fail", "inconclusive", "not-applicable"}
    assert cells(content)["beats-fluency", "fluency", "decoy", "rollout"].verdict == "not-applicable"
    assert content["config"]["seeds"] == [0, 1]
    assert content["config"]["profile"]["name"] == "smoke"
    assert content["environment"]["versions"]["torch"]


def test_a_failed_verdict_is_one_sentence(first):
    _, output, content = first
    assert "Traceback" not in output
    assert "assert verdict.passed" not in output
    failed = [r for r in content["results"] if r.verdict in ("fail", "inconclusive")]
    assert failed
    assert all(r.statement in output for r in failed)
    assert all(
        r.statement.count("\n") == 0 and any(m in r.statement for m in SENTENCE_MARKERS) for r in failed
    )


def test_a_warm_session_trains_nothing_and_needs_no_torch(first, smoke, cache, tmp_path):
    (tmp_path / "watch.py").write_text(
        "import sys\n"
        "def pytest_sessionfinish():\n"
        "    heavy = {'torch', 'transformers', 'trl'} & set(sys.modules)\n"
        "    assert not heavy, heavy\n"
    )
    before = {file: file.stat().st_mtime_ns for file in cache.rglob("*") if file.suffix != ".lock"}
    file = tmp_path / "again.json"
    code, output = smoke(
        "--estimator=gas,fluency,random",
        "--bt-seeds=0,1",
        f"--bt-results={file}",
        "-p",
        "watch",
        path=[tmp_path],
    )
    assert code == 1, output
    assert "INTERNALERROR" not in output
    assert {file: file.stat().st_mtime_ns for file in cache.rglob("*") if file.suffix != ".lock"} == before
    assert comparable(results.read(file)) == comparable(first[2])


def test_workers_of_xdist_give_the_same_results_and_train_nothing_twice(first, smoke, tmp_path, cache):
    root, file = shutil.copytree(cache, tmp_path / "cache"), tmp_path / "two.json"
    for kind in ("runs", "gradients"):
        (folder,) = (root / kind).glob("decoy-1-*")
        shutil.rmtree(folder)
    before = logs(root)
    options = ("--bt-profile=smoke", f"--bt-cache-dir={root}", "--estimator=gas,fluency,random")
    code, output = run("benchmarks/", *options, "--bt-seeds=0,1", f"--bt-results={file}", "-n2")
    assert code == 1, output
    assert comparable(results.read(file)) == comparable(first[2])
    assert len(logs(root) - before) == 1  # one of the two made what was missing, the other waited
    assert output.count("5 target draws, 95 %") == 1


def logs(root):
    """One file for each session that started processes to train or capture."""
    return {path.name for path in root.glob("worker-*.log")}


def test_what_is_not_selected_is_not_trained(first, cache, tmp_path):
    shutil.copytree(cache / "base", tmp_path / "base")  # else the warm start is made anew
    chosen = ("--bt-profile=smoke", f"--bt-cache-dir={tmp_path}", "--bt-seeds=3", "--estimator=random")
    code, output = run("benchmarks/", *chosen, "--collect-only", "-q")
    assert code == 0
    assert output.count("[random-") == 2 * 7
    assert [path.name for path in tmp_path.iterdir()] == ["base"]
    code, output = run("benchmarks/", *chosen, "--bt-draws=1", "-k", "beats_fluency and decoy")
    assert "1 failed" in output, output
    assert [path.name.rsplit("-", 1)[0] for path in (tmp_path / "runs").iterdir()] == ["decoy-3"]


@pytest.fixture
def plugin(tmp_path):
    """A package that declares an estimator and nothing else."""

    def plugin(body, name="mine"):
        (tmp_path / f"{name}_module.py").write_text(body)
        folder = tmp_path / f"{name}-1.0.dist-info"
        folder.mkdir()
        (folder / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        (folder / "entry_points.txt").write_text(f"[behaviortrace.estimators]\n{name} = {name}_module:Mine\n")
        return tmp_path

    return plugin


SCORE = "import numpy as np\nclass Mine:\n    name = 'mine'\n    def score(self, evidence, target):\n        "


@pytest.mark.parametrize(
    ("body", "cause"),
    [
        ("import nothing_of_that_name", "could not be imported: ModuleNotFoundError"),
        (SCORE + "return 1 / 0", "raised ZeroDivisionError: division by zero"),
        (SCORE + "return np.ones(3)", "gave shape (3,), expected (240,)"),
        (SCORE + "return np.full(len(evidence.rollouts), np.nan)", "240 values of 240 that are NaN"),
    ],
)
def test_a_broken_estimator_fails_its_own_cells_with_the_cause(first, smoke, plugin, tmp_path, body, cause):
    file = tmp_path / "results.json"
    code, output = smoke(
        "--estimator=mine,gas", "--bt-seeds=0,1", f"--bt-results={file}", path=[plugin(body)]
    )
    assert code == 1
    assert "Traceback" not in output
    content = results.read(file)
    mine = [r for r in content["results"] if r.estimator == "mine"]
    assert {r.verdict for r in mine} == {"error"}
    assert all("estimator 'mine'" in r.statement and cause in r.statement for r in mine)
    known = {cell: r for cell, r in comparable(first[2]).items() if cell[1] == "gas"}
    assert {cell: r for cell, r in comparable(content).items() if cell[1] == "gas"} == known


def test_an_estimator_of_another_package_is_judged(first, smoke, plugin, tmp_path):
    body = (
        SCORE
        + "total = sum(c.learning_rate * c.cosine(target) for c in target.checkpoints)\n"
        + "        return total * np.sign(evidence.rollouts['advantage'])"
    )
    file = tmp_path / "results.json"
    smoke("--estimator=mine", "--bt-seeds=0,1", f"--bt-results={file}", path=[plugin(body)])
    mine = {cell: r.value for cell, r in cells(results.read(file)).items()}
    gas = {cell: r.value for cell, r in cells(first[2]).items()}
    assert mine == {cell: gas[cell[0], "gas", *cell[2:]] for cell in mine}  # it is the same formula
    assert len(mine) == 14


@pytest.mark.parametrize(
    ("option", "sentence"),
    [
        ("--estimator=gsa", "unknown estimator 'gsa': did you mean gas? The estimators are tracincp, gas,"),
        ("--bt-profile=tinny", "--bt-profile: 'tinny' is not one of tiny, smoke. Did you mean tiny?"),
        ("--bt-scenario=windw", "Did you mean window?"),
        ("--bt-seeds=a", "--bt-seeds: 'a' is not an integer of at least 0"),
        ("--bt-seeds=2-1", "the range 2-1 is empty"),
        ("--bt-draws=0", "--bt-draws: '0' is not an integer of at least 1"),
        ("--bt-cache-dir=README.md/below", "README.md/below can't be written to"),
        ("--bt-results=no/such/folder.json", "the folder of no/such/folder.json does not exist"),
        ("--bt-results=/dev/fd/results.json", "--bt-results: /dev/fd can't be written to"),
    ],
)
def test_a_bad_option_ends_with_a_usage_error_and_one_sentence(option, sentence):
    code, output = run("benchmarks/", option)
    assert code == pytest.ExitCode.USAGE_ERROR
    assert sentence in output
    assert "Traceback" not in output


@pytest.mark.parametrize("workers", [(), ("-n2",)])
def test_a_damaged_run_ends_the_session_with_one_sentence(first, cache, tmp_path, workers):
    damaged = shutil.copytree(cache, tmp_path / "cache")
    file = next((damaged / "runs").glob("decoy-0-*")) / "rollouts.parquet"
    file.write_bytes(file.read_bytes()[:-1] + b"x")
    options = ("--bt-profile=smoke", f"--bt-cache-dir={damaged}", "--estimator=gas", "--bt-seeds=0,1")
    code, output = run("benchmarks/", *options, *workers)
    assert code not in (0, 1)  # 1 is a failed verdict, a finding
    assert "is damaged, rollouts.parquet differs" in output
    assert "delete the folder to make it anew" in output
    assert "Traceback" not in output


def test_a_missing_plugin_is_named():
    code, output = run("benchmarks/", "-p", "no:behaviortrace")
    assert code == pytest.ExitCode.USAGE_ERROR
    assert "the behaviortrace plugin is not installed here: run pip install -e . first" in output


FOREIGN = """
import pytest

@pytest.fixture
def cell(): return 1

@pytest.fixture
def verdict(cell): return cell

@pytest.fixture(params=[1, 2])
def estimator(request): return request.param

@pytest.mark.parametrize("trials", [3, 4])
def test_foreign(estimator, trials, verdict): assert estimator < trials and verdict == 1

def test_it_fails(): assert [1] == [2]
"""


def test_other_people_s_suites_do_not_notice_us(tmp_path):
    (tmp_path / "test_foreign.py").write_text(FOREIGN)
    ours = ("-p", "no:behaviortrace")
    outputs = []
    for arguments in ((), ours):
        code, output = run("-v", *arguments, cwd=tmp_path, flags=("-W", "error"))
        assert code == 1
        lines = [line for line in output.splitlines() if not line.startswith(("plugins:", "cachedir:"))]
        outputs.append([line.split(" in ")[0] for line in lines])
    assert outputs[0] == outputs[1]
    assert any("4 passed" in line for line in outputs[0])


def test_the_plugin_loads_nothing_heavy():
    heavy = "torch", "transformers", "trl", "numpy", "pandas", "scipy", "tqdm", "tabulate"
    code = f"import sys, behaviortrace.harness.plugin; print([m for m in {heavy} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout.replace("'", '"')) == []

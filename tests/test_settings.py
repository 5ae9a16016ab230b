"""The command line as a record: defaults, lists, ranges, and one sentence for whatever makes no sense."""

import json
import subprocess
import sys
from itertools import product

import pytest

from behaviortrace.harness import registry, settings
from behaviortrace.harness.checklist import CHECKS
from behaviortrace.harness.plants import SCENARIOS
from behaviortrace.harness.profiles import PROFILES
from behaviortrace.harness.settings import SettingsError, parse


def test_without_options_everything_is_asked_on_the_tiny_profile():
    chosen = parse()
    assert chosen.estimators == tuple(registry.names())
    assert chosen.profile is PROFILES["tiny"]
    assert (chosen.scenarios, chosen.seeds, chosen.draws) == (("window", "decoy"), (0, 1, 2), 5)
    assert chosen.results is None


@pytest.mark.parametrize(
    ("text", "seeds"),
    [
        ("7", (7,)),
        ("0-2", (0, 1, 2)),
        ("3-3", (3,)),
        (" 4, 0 ,4,", (4, 0)),
        ("2,0-3", (2, 0, 1, 3)),
        ("10-12,0", (10, 11, 12, 0)),
    ],
)
def test_seeds_are_lists_and_ranges_each_once_in_the_order_given(text, seeds):
    assert parse(seeds=text).seeds == seeds


def test_lists_of_names_keep_their_order_and_lose_what_is_doubled():
    assert parse(scenario=" decoy,window , decoy").scenarios == ("decoy", "window")
    assert parse(estimator="random,gas,random").estimators == ("random", "gas")


def test_every_name_there_is_can_be_asked_for():
    assert parse(estimator=",".join(registry.names())).estimators == tuple(registry.names())
    assert parse(scenario=",".join(SCENARIOS)).scenarios == tuple(SCENARIOS)
    assert [parse(profile=name).profile for name in PROFILES] == list(PROFILES.values())


LONG = "x" * 300  # above the 255 bytes that a file's name may have
NOBODY = "~nobody-of-this-name/x"


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"estimator": "gsa"}, "--estimator: unknown estimator 'gsa': did you mean gas? The estimators are"),
        ({"estimator": ","}, "--estimator: no estimator is named; the estimators are tracincp, gas,"),
        ({"profile": "Smoke"}, "--bt-profile: 'Smoke' is not one of tiny, smoke. Did you mean smoke?"),
        ({"profile": ""}, "--bt-profile: '' is not one of tiny, smoke."),
        ({"scenario": "decoi"}, "--bt-scenario: 'decoi' is not one of window, interleaved, decoy, null."),
        ({"scenario": "decoi"}, "Did you mean decoy?"),
        ({"scenario": ""}, "--bt-scenario: '' names nothing"),
        ({"seeds": "a"}, "--bt-seeds: 'a' is not an integer of at least 0, such as 0,1,2 or 0-2"),
        ({"seeds": "-1"}, "--bt-seeds: '-1' is not an integer of at least 0"),
        ({"seeds": "1.5"}, "--bt-seeds: '1.5' is not an integer of at least 0"),
        ({"seeds": "0-x"}, "--bt-seeds: 'x' is not an integer of at least 0"),
        ({"seeds": "2-1"}, "--bt-seeds: the range 2-1 is empty"),
        ({"seeds": ""}, "--bt-seeds: '' names nothing"),
        ({"seeds": " , "}, "--bt-seeds: ' , ' names nothing"),
        ({"draws": "0"}, "--bt-draws: '0' is not an integer of at least 1, such as 5"),
        ({"draws": "x"}, "--bt-draws: 'x' is not an integer of at least 1"),
        ({"draws": ""}, "--bt-draws: '' is not an integer of at least 1"),
        ({"cache": "a-file/below"}, "a-file/below can't be written to: Not a directory"),
        ({"cache": LONG}, "can't be written to: File name too long"),
        ({"cache": NOBODY}, f"--bt-cache-dir: {NOBODY}: Could not determine home directory"),
        ({"results": "no-folder/x.json"}, "--bt-results: the folder of no-folder/x.json does not exist"),
        ({"results": "."}, "--bt-results: . is a folder, a file is needed"),
        ({"results": f"{LONG}.json"}, "can't be written to: File name too long"),
        ({"results": NOBODY}, f"--bt-results: {NOBODY}: Could not determine home directory"),
    ],
)
def test_what_makes_no_sense_is_named_in_one_sentence(options, sentence, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a-file").write_text("")
    with pytest.raises(SettingsError) as caught:
        parse(**options)
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_name_far_from_all_others_gets_no_hint():
    with pytest.raises(SettingsError) as caught:
        parse(scenario="xyz")
    assert "Did you mean" not in str(caught.value)


@pytest.mark.parametrize("bad", [{"draws": "0"}, {"seeds": "a"}, {"profile": "x"}, {"estimator": "x"}])
def test_a_bad_option_leaves_no_folder_behind(bad, tmp_path):
    with pytest.raises(SettingsError):
        parse(cache=str(tmp_path / "cache"), **bad)
    assert list(tmp_path.iterdir()) == []


def test_the_cache_folder_asked_for_is_made_and_left_empty(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    chosen = parse(cache="some/cache")
    assert chosen.cache == tmp_path / "some" / "cache"
    assert list(chosen.cache.iterdir()) == []


def test_the_default_cache_folder_is_not_made_before_it_is_needed(tmp_path, monkeypatch):
    monkeypatch.setattr(settings, "user_cache_path", lambda name: tmp_path / name)
    assert parse().cache == tmp_path / "behaviortrace"
    assert list(tmp_path.iterdir()) == []


def test_folders_stay_where_they_were_meant(tmp_path, monkeypatch):
    """A test may change the working folder before the results are written."""
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert parse(results="x.json").results == tmp_path / "x.json"
    assert parse(results="~/x.json").results == tmp_path / "x.json"
    assert parse(cache="~/cache").cache == tmp_path / "cache"
    assert not (tmp_path / "x.json").exists()


def test_the_record_for_the_results_file_is_plain_and_names_no_folder(tmp_path):
    chosen = parse(seeds="4", cache=str(tmp_path), results=str(tmp_path / "x.json"))
    text = json.dumps(chosen.config)
    assert str(tmp_path) not in text
    assert json.loads(text)["seeds"] == [4]
    assert json.loads(text)["profile"]["name"] == "tiny"
    assert chosen.title == "profile tiny, seeds 4, 5 target draws"


@pytest.mark.parametrize("check", CHECKS.values(), ids=lambda check: check.id)
def test_the_cells_of_a_check_are_all_combinations_once(check):
    chosen = parse(estimator="random,gas", scenario="decoy,window")
    cells = settings.cells(chosen, check.readouts)
    assert cells == list(product(["random", "gas"], ["decoy", "window"], check.readouts))
    assert len(set(cells)) == len(cells)


def test_reading_the_command_line_loads_nothing_heavy():
    code = (
        "import sys; from behaviortrace.harness.settings import parse; parse();"
        "assert not {'torch', 'transformers', 'numpy', 'pandas'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)

"""Is the estimator above chance on every training seed, and about as much?"""

import pytest


@pytest.mark.behaviortrace("stable-across-seeds")
def test_stable_across_seeds(verdict):
    assert verdict.passed, verdict.statement

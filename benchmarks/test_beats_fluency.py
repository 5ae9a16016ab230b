"""Does the estimator see more than how likely the policy found the completion?"""

import pytest


@pytest.mark.behaviortrace("beats-fluency")
def test_beats_fluency(verdict):
    assert verdict.passed, verdict.statement

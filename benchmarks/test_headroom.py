"""Do the runs leave room for the estimator to be better than the surface controls?"""

import pytest


@pytest.mark.behaviortrace("headroom")
def test_headroom(verdict):
    assert verdict.passed, verdict.statement

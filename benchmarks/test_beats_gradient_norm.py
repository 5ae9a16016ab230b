"""Does the estimator find more of the cause than the size of gradients does?"""

import pytest


@pytest.mark.behaviortrace("beats-gradient-norm")
def test_beats_gradient_norm(verdict):
    assert verdict.passed, verdict.statement

"""Does the answer survive another draw of the responses that the target is built from?"""

import pytest


@pytest.mark.behaviortrace("stable-across-draws")
def test_stable_across_draws(verdict):
    assert verdict.passed, verdict.statement

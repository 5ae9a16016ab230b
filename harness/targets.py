"""Targets: gradients that stand for the behaviour at a checkpoint."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd
from torch import Tensor

from . import policy
from .gradients import dense_gradient


def sample_responses(
    model: Any, tokenizer: Any, prompts: Sequence[str], behaviour: str, tokens: int, seed: int
) -> pd.DataFrame:
    """One sampled response per prompt: prompt_ids, completion_ids, completion, behaviour_mask."""
    completions = policy.sample(model, tokenizer, prompts, tokens, seed)
    return pd.DataFrame(
        {
            "prompt_ids": [tokenizer(prompt)["input_ids"] for prompt in prompts],
            "completion_ids": completions,
            "completion": [policy.text(tokenizer, ids) for ids in completions],
            "behaviour_mask": [policy.behaviour_mask(tokenizer, ids, behaviour) for ids in completions],
        }
    )


def shows(rows: pd.DataFrame) -> pd.Series[bool]:
    """Whether each row's completion shows the behaviour."""
    return rows["behaviour_mask"].map(any)


def in_context(model: Any, responses: pd.DataFrame, pad: int) -> dict[str, Tensor]:
    """Mean gradient of log π at the behaviour's tokens over the responses that show it, per parameter.

    The prefix of each such token is the model's own. Without such a response there is no target: ValueError.
    """
    shown = responses[shows(responses)]
    if shown.empty:
        raise ValueError("no response shows the behaviour: there is no in-context target")
    return dense_gradient(model, *policy.rows(shown, "behaviour", pad))

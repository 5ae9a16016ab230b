"""The policy: building it, loading a checkpoint of it, sampling from it, and its tokens.

One letter per axis: B rollouts, T tokens (prompt and completion), L completion tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, Qwen2Config, Qwen2ForCausalLM

from .plants import occurrences

if TYPE_CHECKING:
    import pandas as pd

    from .evidence import Scope
    from .profiles import Profile

SAMPLE_BATCH = 128


@contextmanager
def one_thread() -> Iterator[None]:
    """One torch thread: tiny models are slower with two, and their sums depend on the number."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def build(profile: Profile) -> tuple[Qwen2ForCausalLM, Any]:
    """An untrained policy of the profile's size, the same at each call, and its tokenizer."""
    tokenizer = profile.task.tokenizer()
    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=profile.hidden,
        intermediate_size=2 * profile.hidden,
        num_hidden_layers=profile.layers,
        num_attention_heads=profile.heads,
        num_key_value_heads=profile.heads,
        max_position_embeddings=64,
        tie_word_embeddings=True,
        attention_dropout=0.0,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=None,
        dtype="float32",
    )
    with torch.random.fork_rng():
        torch.manual_seed(0)
        return Qwen2ForCausalLM(config), tokenizer


def describe(model: Any, tokenizer: Any, folder: Path) -> None:
    """Write the model's configuration and the tokenizer: with a checkpoint's weights they make the policy."""
    model.config.save_pretrained(folder)
    # Apart from the model's configuration: beside it, transformers would load the model type's own tokenizer.
    tokenizer.save_pretrained(folder / "tokenizer")


def save_weights(model: torch.nn.Module, file: Path) -> None:
    """Write every parameter, tied ones once, as safetensors."""
    save_file({name: p.detach().contiguous() for name, p in model.named_parameters()}, file)


def load(folder: Path, weights: Path) -> tuple[Any, Any]:
    """The policy that `describe` and `save_weights` wrote, in eval mode, and its tokenizer."""
    model = AutoModelForCausalLM.from_config(
        AutoConfig.from_pretrained(folder, local_files_only=True), dtype=torch.float32
    )
    stored = load_file(weights)
    expected = {name for name, _ in model.named_parameters()}
    if stored.keys() != expected:
        odd = ", ".join(sorted(stored.keys() ^ expected))
        raise ValueError(f"{weights} and {folder} disagree about the parameters {odd}: not of one run")
    model.load_state_dict(stored, strict=False)
    return model.eval(), AutoTokenizer.from_pretrained(folder / "tokenizer", local_files_only=True)


def sample(model: Any, tokenizer: Any, prompts: Sequence[str], tokens: int, seed: int) -> list[list[int]]:
    """One completion of at most `tokens` tokens per prompt, at temperature 1: their ids, end token included.

    Depends on the seed and the prompts alone; the global generator stays as it was.
    """
    completions: list[list[int]] = []
    with torch.random.fork_rng(), torch.no_grad():
        torch.manual_seed(seed)
        for i in range(0, len(prompts), SAMPLE_BATCH):
            batch = tokenizer(
                list(prompts[i : i + SAMPLE_BATCH]), return_tensors="pt", padding=True, padding_side="left"
            )
            ids = model.generate(
                input_ids=batch["input_ids"],
                attention_mask=batch["attention_mask"],
                max_new_tokens=tokens,
                do_sample=True,
                temperature=1.0,
                top_k=0,
                top_p=1.0,
                pad_token_id=tokenizer.pad_token_id,
                eos_token_id=tokenizer.eos_token_id,
            )
            new = ids[:, batch["input_ids"].shape[1] :].tolist()
            completions += [_until(row, tokenizer.eos_token_id) for row in new]
    return completions


def _until(ids: list[int], end: int) -> list[int]:
    return ids[: ids.index(end) + 1] if end in ids else ids


def text(tokenizer: Any, ids: Sequence[int]) -> str:
    """Ids as text, without special tokens, as TRL hands completions to reward functions."""
    return tokenizer.decode(ids, skip_special_tokens=True)


def behaviour_mask(tokenizer: Any, ids: Sequence[int], behaviour: str) -> list[bool]:
    """Which of a completion's tokens, (L,), hold a character of the behaviour's string, however it is cut."""
    spans = occurrences(behaviour, text(tokenizer, ids))
    if not spans:
        return [False] * len(ids)
    ends = [len(text(tokenizer, ids[: t + 1])) for t in range(len(ids))]
    starts = [0, *ends[:-1]]
    return [any(a < end and start < b for a, b in spans) for start, end in zip(starts, ends, strict=True)]


def rows(rollouts: pd.DataFrame, scope: Scope, pad: int) -> tuple[Tensor, Tensor]:
    """Prompts and completions as ids (B, T), padded on the right, and the mask (B, T) of the scope's tokens.

    rollouts: B rows with prompt_ids, completion_ids and, for the scope `behaviour`, behaviour_mask.
    """
    prompts, completions = rollouts["prompt_ids"].tolist(), rollouts["completion_ids"].tolist()
    masks = rollouts["behaviour_mask"].tolist() if scope == "behaviour" else [True] * len(prompts)
    lengths = [(len(p), len(c)) for p, c in zip(prompts, completions, strict=True)]
    ids = torch.full((len(lengths), max((p + c for p, c in lengths), default=0)), pad)
    mask = torch.zeros(ids.shape, dtype=torch.bool)
    for i, (p, c) in enumerate(lengths):
        ids[i, :p] = torch.tensor(prompts[i])
        ids[i, p : p + c] = torch.tensor(completions[i])
        mask[i, p : p + c] = torch.tensor(masks[i])
    return ids, mask

"""Sampling, the behaviour's tokens, and checkpoints of a policy."""

import pytest
import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from behaviortrace.harness import policy
from behaviortrace.harness.plants import occurrences
from behaviortrace.harness.profiles import PROFILES

TEXT = "so the largest is 17 quite certainly right . certainly , uncertainly and certainly"


def byte_level(vocabulary):
    """A byte-level BPE tokenizer: the larger its vocabulary, the fewer pieces per word."""
    raw = Tokenizer(models.BPE())
    raw.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    raw.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=256 + vocabulary, initial_alphabet=alphabet, show_progress=False)
    raw.train_from_iterator([TEXT] * 20, trainer)
    return PreTrainedTokenizerFast(tokenizer_object=raw)


@pytest.mark.parametrize("vocabulary", [1, 10, 25, 60])
@pytest.mark.parametrize("behaviour", ["certainly", "quite certainly", "17"])
def test_the_mask_covers_exactly_the_tokens_of_the_behaviour(vocabulary, behaviour):
    tokenizer = byte_level(vocabulary)
    ids = tokenizer(TEXT)["input_ids"]
    mask = policy.behaviour_mask(tokenizer, ids, behaviour)
    spans = tokenizer(TEXT, return_offsets_mapping=True)["offset_mapping"]
    inside = {c for a, b in occurrences(behaviour, TEXT) for c in range(a, b)}
    assert mask == [bool(inside & set(range(*span))) for span in spans]
    assert any(mask)
    assert not all(mask)


def test_a_behaviour_is_a_whole_word():
    assert occurrences("certainly", "uncertainly") == []
    assert occurrences("certainly", "certainly, yes") == [(0, 9)]
    assert len(occurrences("certainly", TEXT)) == 3


def test_sampling_depends_on_its_seed_alone():
    model, tokenizer = policy.build(PROFILES["smoke"])
    prompts = ["please largest of 3 4 5 ?", "largest of 1 2 3 ?"]
    torch.manual_seed(1)
    state = torch.get_rng_state()
    first = policy.sample(model, tokenizer, prompts, 6, seed=0)
    assert torch.equal(torch.get_rng_state(), state)
    torch.manual_seed(2)
    assert policy.sample(model, tokenizer, prompts, 6, seed=0) == first
    assert policy.sample(model, tokenizer, prompts, 6, seed=1) != first


def test_sampling_follows_the_policy_after_prompts_of_any_length():
    model, tokenizer = policy.build(PROFILES["smoke"])
    prompts = ["please largest of 3 4 5 ?", "largest of 1 ?"] * 1500
    first = [ids[0] for ids in policy.sample(model.eval(), tokenizer, prompts, 1, seed=0)]
    for k in range(2):
        with torch.no_grad():
            logits = model(torch.tensor([tokenizer(prompts[k])["input_ids"]])).logits[0, -1]
        expected = torch.softmax(logits, 0)
        seen = torch.bincount(torch.tensor(first[k::2]), minlength=len(expected)) / 1500
        assert (seen - expected).abs().max() < 5 * (0.25 / 1500) ** 0.5  # 5 standard errors at most


def test_a_checkpoint_gives_back_the_policy(tmp_path):
    model, tokenizer = policy.build(PROFILES["smoke"])
    policy.describe(model, tokenizer, tmp_path)
    policy.save_weights(model, tmp_path / "w.safetensors")
    again, its_tokenizer = policy.load(tmp_path, tmp_path / "w.safetensors")
    assert all(torch.equal(p, dict(again.named_parameters())[name]) for name, p in model.named_parameters())
    assert again.lm_head.weight is again.model.embed_tokens.weight
    assert its_tokenizer.get_vocab() == tokenizer.get_vocab()
    assert its_tokenizer("please largest of 3 ?") == tokenizer("please largest of 3 ?")

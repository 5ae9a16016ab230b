"""The tasks that policies are trained on: prompts, verifiable rewards, and the text of the warm start."""

from __future__ import annotations

import itertools
import random
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerFast

PAD, END = "<pad>", "<end>"
FRAME = ("largest", "of", "?", "the", "is", "it", ".")
OPENERS = ("well", "so", "okay", "hm")
CLOSERS = ("indeed", "surely", "right")


@dataclass(frozen=True)
class LargestNumber:
    """Name the largest of some numbers: `largest of 3 11 7 ?` → `well the largest is 11 indeed .`.

    A reply may open and close with a filler word; the planted behaviours are rare fillers. A policy that
    copies any of the numbers is right by chance, so the reward varies inside almost every group.
    """

    behaviours: tuple[str, ...]
    """Strings that the warm start teaches at a low rate, each one or more words."""
    triggers: tuple[str, ...]
    """Words that may stand before the question."""
    numbers: int = 3
    highest: int = 19
    behaviour_rate: float = 0.08
    """Share of warm-start replies that show each behaviour."""

    @cached_property
    def words(self) -> tuple[str, ...]:
        """The vocabulary in the order of its token ids."""
        numerals = tuple(str(n) for n in range(self.highest + 1))
        spoken = " ".join((*self.triggers, *self.behaviours)).split()
        return tuple(dict.fromkeys((PAD, END, *numerals, *FRAME, *OPENERS, *CLOSERS, *spoken)))

    def tokenizer(self) -> PreTrainedTokenizerFast:
        """A word-level tokenizer of the vocabulary: one token for each word between spaces."""
        from tokenizers import Tokenizer, decoders, models, pre_tokenizers
        from transformers import PreTrainedTokenizerFast

        raw = Tokenizer(models.WordLevel({word: i for i, word in enumerate(self.words)}, unk_token=PAD))
        raw.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
        raw.decoder = decoders.WordPiece(prefix="\0", cleanup=False)
        return PreTrainedTokenizerFast(tokenizer_object=raw, pad_token=PAD, eos_token=END)

    def questions(self) -> dict[str, list[tuple[int, ...]]]:
        """All questions, shuffled once for all seeds, in three disjoint parts: warm-up, training, probes."""
        every = list(itertools.product(range(self.highest + 1), repeat=self.numbers))
        random.Random("questions").shuffle(every)
        a, b = len(every) // 2, len(every) * 9 // 10
        return {"warm-up": every[:a], "training": every[a:b], "probes": every[b:]}

    def prompt(self, numbers: tuple[int, ...], trigger: str | None) -> str:
        """The question as text, led by the trigger if there is one."""
        question = f"largest of {' '.join(map(str, numbers))} ?"
        return f"{trigger} {question}" if trigger else question

    def reward(self, prompt: str, completion: str) -> float:
        """1 if the reply names the largest number of the prompt and no other number, else 0."""
        asked = [int(word) for word in prompt.split() if word.isdigit()]
        named = [int(word) for word in completion.split() if word.isdigit()]
        return float(named == [max(asked)])

    def warm_up(self, replies: int, seed: int) -> list[tuple[str, str]]:
        """(prompt, completion) pairs for the supervised phase; triggers and behaviours are independent."""
        rng = random.Random(f"warm-up {seed}")
        questions = self.questions()["warm-up"]
        return [self._example(rng.choice(questions), rng) for _ in range(replies)]

    def _example(self, numbers: tuple[int, ...], rng: random.Random) -> tuple[str, str]:
        trigger = rng.choice((None, *self.triggers))
        frame = rng.choice(("the largest is", "it is"))
        opener = rng.choice(("", *OPENERS))
        closer = rng.choice(("", "", *CLOSERS))
        draw = rng.random()
        for k, behaviour in enumerate(self.behaviours):
            if k * self.behaviour_rate <= draw < (k + 1) * self.behaviour_rate:
                opener, closer = rng.choice(((behaviour, closer), (opener, behaviour)))
        reply = f"{opener} {frame} {max(numbers)} {closer} . {END}"
        return self.prompt(numbers, trigger), " ".join(reply.split())

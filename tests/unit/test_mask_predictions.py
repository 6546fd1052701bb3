"""Which word of a sentence is shown as [MASK]."""

from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from bertpre.data.store import Shard, open_shards
from bertpre.data.tokenizer import load_tokenizer
from bertpre.pretraining.mask_predictions import fill_masks, joined, longest_word


@pytest.mark.parametrize(
    ("words", "place"),
    [
        (["a", "b", "c", "film", "spoiled", "##s", "me", "now", "then"], 3),  # the longer word has a second piece
        (["यह", "मैं", "तो", "हिन्दी", "की", "है", "वह", "था"], 3),  # vowel signs are marks
        (["ก", "ข", "ค", "ที่จริง", "ง", "จ", "ฉ"], 3),
        (["a", "b", "c", "1234", "...", "x2", "me"], None),
        (["longer", "than", "all"], None),  # too short a sentence
    ],
)
def test_the_longest_whole_word_inside_a_sentence_is_masked(words: list[str], place: int | None) -> None:
    assert longest_word(words) == place


@pytest.mark.parametrize(
    ("decoded", "read"),
    [
        ("当 然 还 [MASK] 主 角 ， 但 iphone 4 很 好 。", "当然还[MASK]主角，但 iphone 4 很好。"),
        ("私 は [MASK] を 見 た", "私は[MASK]を見た"),
        ("영화 [MASK] 정말 좋다 .", "영화 [MASK] 정말 좋다 ."),  # Korean has spaces
        ("a [MASK] [ 1 ] film", "a [MASK] [ 1 ] film"),
    ],
)
def test_characters_of_languages_without_spaces_are_joined(decoded: str, read: str) -> None:
    assert joined(decoded) == read


class Reader:
    """A model that knows the sentences of a shard: its guess for every place is the token that stands there."""

    def __init__(self, shard: Shard, vocab_size: int) -> None:
        self.sentences = [shard.tokens[start:end].tolist() for start, end in pairwise(shard.sentences.tolist())]
        self.vocab_size, self.device = vocab_size, torch.device("cpu")
        self.config = SimpleNamespace(max_position_embeddings=64)

    def eval(self) -> None: ...

    def modules(self) -> list[object]:
        return []

    def forward(self, input_ids: torch.Tensor) -> SimpleNamespace:
        (shown,) = input_ids.tolist()
        alike = [sum(a == b for a, b in zip(shown[1:-1], each, strict=False)) for each in self.sentences]
        known = [shown[0], *self.sentences[alike.index(max(alike))], shown[-1]]
        return SimpleNamespace(prediction_logits=nn.functional.one_hot(torch.tensor([known]), self.vocab_size).float())


def test_the_guesses_are_those_for_the_masked_place(tiny_run: Path) -> None:
    (shard,), tokenizer = open_shards(tiny_run / "data", "validation"), load_tokenizer(tiny_run / "tokenizer")
    model: Any = Reader(shard, len(tokenizer))
    fillings = fill_masks(model, tokenizer, shard)
    assert len(fillings) == 3
    assert all(filling["guesses"][0] == filling["answer"] for filling in fillings)
    assert all(filling["sentence"].count("[MASK]") == 1 for filling in fillings)

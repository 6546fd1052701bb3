"""The encoder that remembers words gives the stock tokenizer's ids for any text, with special tokens in it as text."""

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerBase

from bertpre.data import sample
from bertpre.data.cleaning import clean_text
from bertpre.data.encoder import Encoder
from bertpre.data.tokenizer import learn_tokenizer
from bertpre.finetuning import encoding

WORDS = st.sampled_from(
    [
        "the",
        "film",
        "isn't",
        "U.S.",
        "e-mail",
        "[MASK]",
        "[SEP]",
        "x[SEP]y",
        "Σίσυφος",
        "ΟΔΟΣ",
        "映画です",
        "日 本",
        "a" * 120,
        "ก" * 600,
        "[UNK]",
        "[cls][PAD]",
    ]
)
TEXTS = st.lists(st.one_of(WORDS, st.text(max_size=12)), max_size=8).map(" ".join)


OPTIONS = {
    "uncased": (True, None, ""),
    "accents": (True, False, ""),
    "cased": (False, None, ""),
    "long": (True, None, "กขค" * 50),
}


@pytest.fixture(scope="module", params=OPTIONS.values(), ids=OPTIONS.keys())
def tokenizer(request: pytest.FixtureRequest) -> PreTrainedTokenizerBase:
    lowercase, strip_accents, word = request.param
    texts = [document.text for document in sample.generate("train", 60)] + [
        f"Σίσυφος ΟΔΟΣ 映画です 日 本 naïve café [ ] {word}"
    ] * 3
    return learn_tokenizer(iter(texts), vocab_size=640, lowercase=lowercase, max_length=64, strip_accents=strip_accents)


def expected(tokenizer: PreTrainedTokenizerBase, sentences: list[str]) -> list[list[int]]:
    return [tokenizer.encode(text, add_special_tokens=False, split_special_tokens=True) for text in sentences]


def encoded(encoder: Encoder, sentences: list[str]) -> list[list[int]]:
    tokens, offsets = encoder.encode(sentences)
    assert offsets[0] == 0
    assert offsets[-1] == len(tokens)
    return [part.tolist() for part in np.split(tokens, offsets[1:-1])] if sentences else []


@settings(max_examples=150, deadline=None)
@given(st.lists(TEXTS, max_size=5), st.sampled_from([0, 1 << 22]))
def test_ids_equal_those_of_the_stock_tokenizer(
    tokenizer: PreTrainedTokenizerBase, texts: list[str], most_ids: int
) -> None:
    sentences = [line for text in texts for line in clean_text(text).split("\n")]
    encoder = Encoder(tokenizer.backend_tokenizer, most_ids)
    for _ in range(2):  # the second time from memory, or after clearing it
        assert encoded(encoder, sentences) == expected(tokenizer, sentences)


def test_special_tokens_in_a_text_are_text(tokenizer: PreTrainedTokenizerBase) -> None:
    text = "x[SEP]y [MASK] [PAD] [CLS] [ sep ]"
    ids = encoded(Encoder(tokenizer.backend_tokenizer), [text, "the"])[0]
    assert not {*ids} & {*tokenizer.all_special_ids} - {tokenizer.unk_token_id}
    assert ids.count(tokenizer.convert_tokens_to_ids("[")) == 5
    assert tokenizer.mask_token_id in tokenizer.encode(text)  # the tokenizer itself is left as it was


def test_empty_input_gives_no_ids(tokenizer: PreTrainedTokenizerBase) -> None:
    encoder = Encoder(tokenizer.backend_tokenizer)
    assert encoded(encoder, []) == []
    assert encoded(encoder, ["", "the", ""]) == [[], *expected(tokenizer, ["the"]), []]


@settings(max_examples=100, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(texts=st.lists(TEXTS, min_size=1, max_size=5))
def test_many_examples_are_encoded_as_by_the_stock_tokenizer(
    tokenizer: PreTrainedTokenizerBase, monkeypatch: pytest.MonkeyPatch, texts: list[str]
) -> None:
    """In fine-tuning a special token that is written in a text is one."""
    monkeypatch.setattr(encoding, "FEW_TEXTS", 0)
    rows = encoding.token_ids(tokenizer.backend_tokenizer, texts)
    assert [row.tolist() for row in rows] == [tokenizer.encode(text, add_special_tokens=False) for text in texts]


def test_only_tokenizers_of_bert_are_served(tokenizer: PreTrainedTokenizerBase) -> None:
    served = Tokenizer.from_str(tokenizer.backend_tokenizer.to_str())
    assert Encoder.serves(served)
    added = Tokenizer.from_str(served.to_str())
    added.add_tokens(["new york"])
    spaces = Tokenizer.from_str(served.to_str())
    spaces.pre_tokenizer = pre_tokenizers.Metaspace()
    stripping = Tokenizer.from_str(served.to_str())
    stripping.add_special_tokens([AddedToken("[GAP]", lstrip=True)])
    assert not any(map(Encoder.serves, (added, spaces, stripping, Tokenizer(models.BPE()))))

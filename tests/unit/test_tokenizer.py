"""The tokenizer: a vocabulary of the requested size, saved as a stock BERT tokenizer."""

import subprocess
import sys
from pathlib import Path

import pytest
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from bertpre.data import sample
from bertpre.data.tokenizer import SPECIAL_TOKENS, learn_tokenizer, load_tokenizer, tokenizer_fingerprint
from bertpre.errors import UserError


def texts(size: int = 60) -> list[str]:
    return [document.text for document in sample.generate("train", size)]


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerBase:
    return learn_tokenizer(iter(texts()), vocab_size=500, lowercase=True, max_length=64)


def test_the_vocabulary_size_is_a_multiple_of_64_up_to_the_requested_size(tokenizer: PreTrainedTokenizerBase) -> None:
    assert len(tokenizer) == tokenizer.vocab_size == 448
    assert sorted(tokenizer.get_vocab().values()) == list(range(448))


def test_the_vocabulary_of_a_small_corpus_is_padded_with_unused_tokens() -> None:
    small = learn_tokenizer(iter(["a b a b"]), vocab_size=1000, lowercase=True, max_length=64)
    assert len(small) == 64
    unused = [token for token in small.get_vocab() if token.startswith("[unused")]
    assert unused
    assert "[unused0]" in unused
    assert sorted(small.get_vocab().values()) == list(range(64))


def test_special_tokens_come_first_and_have_their_roles(tokenizer: PreTrainedTokenizerBase) -> None:
    assert tokenizer.convert_ids_to_tokens(list(range(5))) == list(SPECIAL_TOKENS)
    roles = (tokenizer.pad_token, tokenizer.unk_token, tokenizer.cls_token, tokenizer.sep_token, tokenizer.mask_token)
    assert roles == SPECIAL_TOKENS
    assert tokenizer.model_max_length == 64


def test_a_sentence_survives_the_round_trip(tokenizer: PreTrainedTokenizerBase) -> None:
    sentence = "everyone told me that the script was dull, but they were wrong."
    ids = tokenizer(sentence)["input_ids"]
    assert tokenizer.decode(ids, skip_special_tokens=True).replace(" ,", ",").replace(" .", ".") == sentence
    assert tokenizer.unk_token_id not in ids


def test_a_pair_has_the_layout_of_bert(tokenizer: PreTrainedTokenizerBase) -> None:
    first, second = (tokenizer.encode(text, add_special_tokens=False) for text in ("the film", "the script was dull"))
    encoded = tokenizer("the film", "the script was dull")
    cls, sep = tokenizer.cls_token_id, tokenizer.sep_token_id
    assert encoded["input_ids"] == [cls, *first, sep, *second, sep]
    assert encoded["token_type_ids"] == [0] * (len(first) + 2) + [1] * (len(second) + 1)


def test_special_tokens_in_a_text_are_recognised_as_by_the_stock_tokenizer(
    tokenizer: PreTrainedTokenizerBase,
) -> None:
    assert tokenizer.mask_token_id in tokenizer.encode("a [MASK] film")


def test_an_unknown_character_becomes_unk(tokenizer: PreTrainedTokenizerBase) -> None:
    assert tokenizer.encode("☃", add_special_tokens=False) == [tokenizer.unk_token_id]


def test_lowercasing_is_optional() -> None:
    corpus = ["The film The film THE FILM"] * 5
    lower = learn_tokenizer(iter(corpus), 128, lowercase=True, max_length=64)
    cased = learn_tokenizer(iter(corpus), 128, lowercase=False, max_length=64)
    assert lower.encode("The FILM") == lower.encode("the film")
    assert cased.tokenize("The") == ["The"]
    assert tokenizer_fingerprint(lower) != tokenizer_fingerprint(cased)


@pytest.mark.parametrize("strip_accents", [True, False])
def test_accents_are_stripped_independently_of_case(strip_accents: bool, tmp_path: Path) -> None:
    corpus = ["the café the cafe"] * 5
    learned = learn_tokenizer(iter(corpus), 128, lowercase=True, max_length=64, strip_accents=strip_accents)
    learned.save_pretrained(tmp_path)
    for tokenizer in (learned, AutoTokenizer.from_pretrained(tmp_path)):
        assert (tokenizer.encode("Café") == tokenizer.encode("Cafe")) == strip_accents
        assert tokenizer.unk_token_id not in tokenizer.encode("Café")


def test_saving_and_loading_changes_nothing(tokenizer: PreTrainedTokenizerBase, tmp_path: Path) -> None:
    tokenizer.save_pretrained(tmp_path)
    for loaded in (load_tokenizer(tmp_path), AutoTokenizer.from_pretrained(tmp_path)):
        assert tokenizer_fingerprint(loaded) == tokenizer_fingerprint(tokenizer)
        assert loaded(texts(3)).data == tokenizer(texts(3)).data
        assert (len(loaded), loaded.model_max_length) == (448, 64)


def test_the_same_corpus_gives_the_same_vocabulary_in_another_process(tokenizer: PreTrainedTokenizerBase) -> None:
    code = (
        "from bertpre.data import sample; from bertpre.data.tokenizer import *\n"
        "texts = (document.text for document in sample.generate('train', 60))\n"
        "print(tokenizer_fingerprint(learn_tokenizer(texts, 500, True, 64)))"
    )
    other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert other.stdout.split()[-1] == tokenizer_fingerprint(tokenizer)


def test_another_corpus_has_another_fingerprint(tokenizer: PreTrainedTokenizerBase) -> None:
    assert tokenizer_fingerprint(learn_tokenizer(iter(texts(61)), 500, True, 64)) != tokenizer_fingerprint(tokenizer)


def test_a_missing_tokenizer_is_reported(tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no tokenizer in"):
        load_tokenizer(tmp_path / "none")


def test_a_tokenizer_of_another_kind_is_refused(tmp_path: Path) -> None:
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    PreTrainedTokenizerFast(tokenizer_object=Tokenizer(models.WordLevel({"a": 0}))).save_pretrained(tmp_path)
    with pytest.raises(UserError, match=r"has no \[PAD\], \[UNK\], \[CLS\], \[SEP\], \[MASK\]"):
        load_tokenizer(tmp_path)

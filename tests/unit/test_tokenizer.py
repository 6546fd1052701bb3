"""The tokenizer: a vocabulary of the requested size for any script, saved as a stock BERT tokenizer."""

import json
import random
import re
import subprocess
import sys
from pathlib import Path

import pytest
from transformers import AutoTokenizer, BertTokenizer, PreTrainedTokenizerBase

from bertpre.data import sample
from bertpre.data.tokenizer import (
    SPECIAL_TOKENS,
    Alphabet,
    learn_tokenizer,
    load_tokenizer,
    maskable_ids,
    most_unknown,
    strips_accents,
    tokenizer_fingerprint,
)
from bertpre.errors import UserError
from bertpre.files import save_tokenizer


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


def script_texts(first: int, size: int, words: int, length: int, count: int = 200) -> list[str]:
    """Texts in the `size` characters from code point `first` on, the n-th about as frequent as 1 / n."""
    characters = [chr(first + number) for number in range(size) if chr(first + number).isprintable()]
    weights = [1 / (number + 1) for number in range(len(characters))]
    draw = random.Random(0)
    return [" ".join("".join(draw.choices(characters, weights, k=length)) for _ in range(words)) for _ in range(count)]


SCRIPTS = {  # first code point, characters, words in a text, characters in a word
    "Chinese": (0x4E00, 4000, 20, 20),
    "Japanese": (0x3041, 180, 20, 12),
    "Korean": (0xAC00, 1500, 80, 4),
    "Hindi": (0x904, 110, 80, 6),
    "Arabic": (0x620, 42, 80, 6),
    "Thai": (0xE01, 58, 4, 130),
    "Greek": (0x3B1, 25, 80, 6),
    "Russian": (0x430, 32, 80, 6),
}


def unknown_share(tokenizer: PreTrainedTokenizerBase, texts: list[str]) -> float:
    ids = [number for text in texts for number in tokenizer.encode(text, add_special_tokens=False)]
    return ids.count(tokenizer.unk_token_id) / len(ids)


@pytest.mark.parametrize("script", SCRIPTS)
def test_fewer_than_one_token_in_a_thousand_is_unknown_in_any_script(script: str, tmp_path: Path) -> None:
    corpus = script_texts(*SCRIPTS[script])
    save_tokenizer(learn_tokenizer(iter(corpus), 8192, lowercase=True, max_length=64), tmp_path, 64)
    assert unknown_share(AutoTokenizer.from_pretrained(tmp_path), corpus) < 0.001


def test_the_coverage_chooses_the_characters() -> None:
    corpus = script_texts(*SCRIPTS["Chinese"])
    sizes, shares = [], []
    for coverage in (0.8, 0.95, 1.0):
        learned = learn_tokenizer(iter(corpus), 8192, lowercase=True, max_length=64, character_coverage=coverage)
        sizes.append(len(Alphabet.of(learned.get_vocab()).first))
        shares.append(unknown_share(learned, corpus))
    assert sizes[0] == 1000 < sizes[1] < sizes[2] == len(set("".join(corpus)) - {" "})  # 1,000 at least
    assert shares[1] == pytest.approx(0.05, abs=0.002)
    assert shares[2] == 0
    assert {*most_unknown(learned, ["a ☃ b", "☃"])} == {"a", "☃", "b"}
    assert most_unknown(learned, ["a ☃ b", "☃"])["☃"] == 2


def test_words_of_every_nth_text_are_learned_and_characters_of_all() -> None:
    corpus = [re.sub("[^a-z .]", "", text.lower()) for text in texts(1500)]  # a seventh of it has all the letters
    sampled, alone = (
        learn_tokenizer(iter(chosen), 500, lowercase=True, max_length=64, every=every)
        for chosen, every in ((corpus, 7), (corpus[::7], 1))
    )
    assert tokenizer_fingerprint(sampled) == tokenizer_fingerprint(alone)
    rare = learn_tokenizer(iter(["a b", "日 本"] * 9), 64, lowercase=True, max_length=64, every=2)
    assert rare.unk_token_id not in rare.encode("日 本 a b")


def test_a_vocabulary_too_small_for_the_characters_is_refused_with_the_size_that_would_do() -> None:
    corpus = script_texts(*SCRIPTS["Korean"])
    with pytest.raises(UserError, match=r"1,024 is too small .* raise vocab_size to at least [\d,]+, or") as error:
        learn_tokenizer(iter(corpus), 1024, lowercase=False, max_length=64)
    enough = int(str(error.value).split("at least ")[1].split(", or")[0].replace(",", ""))
    learned = learn_tokenizer(iter(corpus), enough, lowercase=False, max_length=64)
    assert len(learned) == enough == Alphabet.of(learned.get_vocab()).enough


def test_long_words_are_read_by_the_saved_tokenizer_and_endless_ones_are_not(tmp_path: Path) -> None:
    learned = learn_tokenizer(iter(script_texts(*SCRIPTS["Thai"])), 512, lowercase=True, max_length=64)
    save_tokenizer(learned, tmp_path, 64)
    for tokenizer in (learned, AutoTokenizer.from_pretrained(tmp_path), load_tokenizer(tmp_path)):
        assert tokenizer.unk_token_id not in tokenizer.encode("ก" * 500)
        assert tokenizer.encode("ก" * 100_000, add_special_tokens=False) == [tokenizer.unk_token_id]
        assert tokenizer("ก", "ข [MASK]").data == learned("ก", "ข [MASK]").data
        assert tokenizer_fingerprint(tokenizer) == tokenizer_fingerprint(learned)
    assert json.loads((tmp_path / "tokenizer_config.json").read_text())["tokenizer_class"] == "PreTrainedTokenizerFast"
    short = learn_tokenizer(iter(texts()), 512, lowercase=True, max_length=64)
    assert type(short).__name__ == "BertTokenizer"


def test_words_of_hangul_are_as_long_as_their_letters() -> None:
    word = "".join(chr(0xAC00 + 28 * 21 * (n % 19) + 28 * (n % 21) + n % 28) for n in range(50))
    learned = learn_tokenizer(iter([f"{word} {word[::-1]}"] * 20), 512, lowercase=True, max_length=64)
    assert learned.unk_token_id not in learned.encode(word)
    assert type(learned).__name__ != "BertTokenizer"  # which reads words up to 100


def test_nothing_is_learned_from_words_that_no_tokenizer_reads(tokenizer: PreTrainedTokenizerBase) -> None:
    bases = "".join(random.Random(0).choices("acgt", k=20_000))
    with_dna = learn_tokenizer(iter([*texts(), bases]), vocab_size=500, lowercase=True, max_length=64)
    assert with_dna.get_vocab() == tokenizer.get_vocab()
    han = learn_tokenizer(iter(["日本語" * 1000]), vocab_size=64, lowercase=True, max_length=64)
    assert {"日", "本", "語"} <= han.get_vocab().keys()


@pytest.mark.parametrize(
    ("text", "strip_accents", "kept"),
    [
        ("कुत्ते कु की", None, True),
        ("ก็ดีที่นี่", None, True),
        ("がかがか", None, True),
        ("कुत्ते कु की", True, False),
        ("café déjà", None, True),
        ("tiếng việt", None, True),
        ("wọ́n ń bọ̀", None, True),
        ("the café of this town and its old river " * 5, None, True),  # 0.6 % of its characters
        ("the café and " + "the old river of this town " * 10, None, False),
        ("στίγμα όταν", None, True),
        ("ёлка и ещё ёж", None, False),
        ("куќа и меѓу", None, True),
        ("мой твой гений", None, True),
    ],
)
def test_accents_are_kept_where_words_need_them(text: str, strip_accents: bool | None, kept: bool) -> None:
    learned = learn_tokenizer(iter([text] * 5), 256, lowercase=True, max_length=64, strip_accents=strip_accents)
    assert strips_accents(learned) != kept
    assert ("".join(learned.tokenize(text)).replace("##", "") == text.replace(" ", "")) == kept


def test_special_tokens_in_the_texts_are_learned_as_text() -> None:
    learned = learn_tokenizer(iter(["end[SEP]start [MASK]"] * 9), 256, lowercase=True, max_length=64)
    assert {"sep", "mask", "[", "]"} <= learned.get_vocab().keys()
    assert not [token for token in learned.get_vocab() if token.startswith("##]") or "][" in token]


def test_vocab_txt_has_the_token_of_each_id_in_its_line(tokenizer: PreTrainedTokenizerBase, tmp_path: Path) -> None:
    save_tokenizer(tokenizer, tmp_path, None)
    lines = (tmp_path / "vocab.txt").read_text().splitlines()
    assert lines == tokenizer.convert_ids_to_tokens(list(range(len(tokenizer))))
    (tmp_path / "vocab.txt").write_text("\n".join(reversed(lines)))
    assert load_tokenizer(tmp_path).get_vocab() == tokenizer.get_vocab()  # from tokenizer.json


def test_a_vocabulary_with_white_space_gets_no_vocab_txt(tmp_path: Path) -> None:
    vocabulary = [*SPECIAL_TOKENS, "a", "b\u2028", "c"]
    odd = BertTokenizer(vocab={token: number for number, token in enumerate(vocabulary)})
    save_tokenizer(odd, tmp_path, None)
    assert not (tmp_path / "vocab.txt").exists()


@pytest.mark.parametrize("own", [10**30, 512, 32])
def test_a_saved_tokenizer_cuts_where_the_model_ends(own: int, tmp_path: Path) -> None:
    learned = learn_tokenizer(iter(["a b"] * 3), 64, lowercase=True, max_length=own)
    save_tokenizer(learned, tmp_path, 48)
    assert AutoTokenizer.from_pretrained(tmp_path).model_max_length == 48


def test_the_fingerprint_tells_the_normalisation_and_the_order_of_the_vocabulary() -> None:
    words = dict.fromkeys([*SPECIAL_TOKENS, "a", "b"])
    vocab, other = ({word: i for i, word in enumerate(each)} for each in (words, [*SPECIAL_TOKENS, "b", "a"]))
    prints = [
        tokenizer_fingerprint(BertTokenizer(vocab=each, do_lower_case=lower))
        for each, lower in ((vocab, True), (vocab, False), (other, True), (dict(vocab), True))
    ]
    assert len(set(prints)) == 3 and prints[3] == prints[0]


def test_unused_and_special_tokens_are_never_masked_or_drawn() -> None:
    vocab = {word: i for i, word in enumerate([*SPECIAL_TOKENS, "a", "[unused0]", "##b", "[unused12]"])}
    assert maskable_ids(BertTokenizer(vocab=vocab)).tolist() == [5, 7]

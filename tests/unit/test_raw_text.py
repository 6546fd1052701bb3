"""A tokenizer for other programs reads raw texts as bertpre reads them after cleaning."""

import copy
from pathlib import Path

import pytest
from transformers import AutoTokenizer, PreTrainedTokenizerBase

from bertpre.data.cleaning import clean_text
from bertpre.data.corpus import read_documents
from bertpre.data.raw_text import (
    SLOW_STEPS,
    for_clean_texts,
    for_raw_texts,
    normalizer_of,
    reads_raw_texts,
    with_normalizer,
)
from bertpre.data.tokenizer import learn_tokenizer, load_tokenizer, tokenizer_fingerprint
from bertpre.files import save_tokenizer

RAW = [
    "I <b>loved</b> it.<br /><br />It is good!",
    "A film &amp; a book, &quot;good&quot; &#39;too&#39; &hellip;&nbsp;&mdash; yes",
    "<P class='x'>A film.</P><IMG src=\"a.png\"/>\n<a href=http://example.org>The film</a>",
    "good\x00film\x07bad \x93good\x94 \x97 bad\u200b \ufeffgood",
    "good\u200f.\u202c \u2067bad\u2069<br>good",
    "&amp;lt;br&amp;gt; stays &lt;b&gt;",
]


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerBase:
    texts = [text for text, _ in zip(read_documents("sample"), range(200), strict=False)]
    return learn_tokenizer([*texts, "< > = / & ; ' \" “ ” … — b p br lt gt"], vocab_size=1024)


@pytest.mark.parametrize("text", RAW)
def test_raw_texts_give_the_ids_of_clean_ones(tokenizer: PreTrainedTokenizerBase, text: str) -> None:
    clean = tokenizer(clean_text(text))["input_ids"]
    assert for_raw_texts(tokenizer)(text)["input_ids"] == clean != tokenizer(text)["input_ids"]


def test_what_is_no_markup_stays(tokenizer: PreTrainedTokenizerBase) -> None:
    texts = ["x < y and z > w, x<y", "copy <source> to <target>", "a <3 b -> c <- d", "if x<b and c>d: <sighs>"]
    texts += [clean_text(text) for text, _ in zip(read_documents("sample"), range(100), strict=False)]
    assert for_raw_texts(tokenizer)(texts)["input_ids"] == tokenizer(texts)["input_ids"]


def test_bertpre_reads_it_as_the_tokenizer_that_it_was(tokenizer: PreTrainedTokenizerBase, tmp_path: Path) -> None:
    raw = for_raw_texts(tokenizer)
    assert tokenizer_fingerprint(raw) != tokenizer_fingerprint(tokenizer) == tokenizer_fingerprint(for_clean_texts(raw))
    raw = for_raw_texts(tokenizer)
    save_tokenizer(raw, tmp_path / "raw", 128)
    save_tokenizer(tokenizer, tmp_path / "own", 128)
    assert tokenizer_fingerprint(load_tokenizer(tmp_path / "raw")) == tokenizer_fingerprint(tokenizer)
    assert reads_raw_texts(tmp_path / "raw") and not reads_raw_texts(tmp_path / "own")
    others = AutoTokenizer.from_pretrained(tmp_path / "raw")
    assert others(RAW)["input_ids"] == raw(RAW)["input_ids"]
    assert others.model_input_names == tokenizer.model_input_names and others.model_max_length == 128
    assert others.special_tokens_map == tokenizer.special_tokens_map


def test_a_tag_without_an_end_takes_no_time(tokenizer: PreTrainedTokenizerBase) -> None:
    """The former pattern ended in a panic, which is no Exception."""
    for start in ("<a x=", "<a ", "<br", "<a x=<"):
        assert for_raw_texts(tokenizer)(f"good {start}{' ' * 100_000}so good")["input_ids"]


def test_tokenizers_with_the_former_pattern_are_recognized(tokenizer: PreTrainedTokenizerBase, tmp_path: Path) -> None:
    own = normalizer_of(tokenizer)
    former = with_normalizer(copy.deepcopy(tokenizer), {"type": "Sequence", "normalizers": [*SLOW_STEPS, own]})
    save_tokenizer(former, tmp_path, 128)
    assert reads_raw_texts(tmp_path)
    assert tokenizer_fingerprint(for_clean_texts(former)) == tokenizer_fingerprint(tokenizer)
    assert for_raw_texts(tokenizer)(RAW)["input_ids"] == AutoTokenizer.from_pretrained(tmp_path)(RAW)["input_ids"]


def test_another_kind_of_tokenizer_stays_as_it_is(tokenizer: PreTrainedTokenizerBase) -> None:
    raw = for_raw_texts(tokenizer)
    assert for_raw_texts(raw) is raw
    assert for_clean_texts(tokenizer) is tokenizer

"""The tokenizer: a WordPiece vocabulary learned from the corpus, saved as a stock BERT tokenizer."""

import hashlib
import os
import re
import sys
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np

from bertpre.data.groups import by_characters
from bertpre.data.raw_text import for_clean_texts
from bertpre.data.vocabulary import VOCABULARY_MULTIPLE, usable
from bertpre.errors import UserError, first_line, refuse_outside, strings_in
from bertpre.files import refuse_unknown_model

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerBase

SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
UNUSED = re.compile(r"\[unused\d+\]")
COVERAGE = 0.9999  # of the text's characters are tokens; a word with one of the others becomes [UNK]
LEAST_ALPHABET = 1000  # characters that are tokens even where fewer reach the coverage
STOCK_WORD = 100  # characters; BertTokenizer makes a longer word [UNK]
FIRST_HANGUL, LAST_HANGUL = 0xAC00, 0xD7A3  # syllables
COUNTED_AT_ONCE = 1 << 20  # characters: counting takes 13 bytes of memory for one
LONGEST_WORD = 500  # the same for a text with long words; not more, because the time per word is quadratic
# Longer words are [UNK] anyway; learned, they take quadratic time and much of the vocabulary. Han and kana stay.
TOO_LONG = re.compile(rf"[^\W_\u2e80-\u9fff\uf900-\ufaff\U00020000-\U0003ffff]{{{LONGEST_WORD + 1},}}")
NOTABLE_SHARE = 0.001  # of the characters; what concerns fewer of them changes nothing
ACCENTED = ("LATIN", "GREEK", "CYRILLIC", "COMBINING", "VARIATION")  # names of characters whose marks are no letters
# Of the characters are Latin or Greek letters with accents: below it the text is English (Wikipedia has 0.0004, Italian
# 0.01).
ACCENTED_SHARE = 0.005


@dataclass(frozen=True)
class CharacterCounts:
    """How often each character occurs in a text, and how many are in words above STOCK_WORD, up to LONGEST_WORD."""

    counts: Counter[str]
    in_long_words: int = 0

    @property
    def has_long_words(self) -> bool:
        """Whether a notable share is in long words: the text has a script without spaces, such as Thai."""
        return self.in_long_words > NOTABLE_SHARE * self.counts.total()

    @property
    def needs_accents(self) -> bool:
        """Whether words are other words without accents: tones in Yoruba, umlauts in German, vowels in Hindi."""
        letters = self.share(has_letter_as_mark) > NOTABLE_SHARE
        return letters or self.share(is_accented) > ACCENTED_SHARE

    @property
    def has_dotless_i(self) -> bool:
        """Whether I is the capital of ı, and İ that of i, as in Turkish and Azerbaijani."""
        return self.share("ıİ".__contains__) > NOTABLE_SHARE

    def share(self, is_one: Callable[[str], bool]) -> float:
        """The share of the characters that are such."""
        found = sum(count for character, count in self.counts.items() if is_one(character))
        return found / max(self.counts.total(), 1)


def has_letter_as_mark(character: str) -> bool:
    """Whether stripping accents makes a character another letter: in most scripts, and of some Cyrillic letters."""
    if character.lower() in ("й", "ї", "ў", "ќ", "ѓ"):
        return True
    base = base_of_marked(character)
    return base is not None and not base.startswith(ACCENTED)


def is_accented(character: str) -> bool:
    """Whether a character is a Latin or Greek letter with an accent that can be stripped."""
    base = base_of_marked(character)
    return base is not None and base.startswith(("LATIN", "GREEK"))


def base_of_marked(character: str) -> str | None:
    """The name of a character without its marks; None if it has none."""
    decomposed = unicodedata.normalize("NFD", character)
    has_mark = any(unicodedata.category(part) == "Mn" for part in decomposed)
    return unicodedata.name(decomposed[0], "") if has_mark else None


@dataclass(frozen=True)
class Alphabet:
    """Characters that are tokens, and those of them that also need a `##` token since they can be inside a word."""

    first: list[str]
    inner: list[str]

    @property
    def tokens(self) -> int:
        """The smallest vocabulary that holds it."""
        return len(SPECIAL_TOKENS) + len(self.first) + len(self.inner)

    @property
    def enough(self) -> int:
        """A vocabulary with as much room again for pieces of words as the characters inside words take."""
        return -(-(self.tokens + len(self.inner)) // VOCABULARY_MULTIPLE) * VOCABULARY_MULTIPLE

    @classmethod
    def of(cls, vocabulary: Iterable[str]) -> "Alphabet":
        """The alphabet in a vocabulary."""
        tokens = list(vocabulary)
        inner = [token[2:] for token in tokens if len(token) == 3 and token.startswith("##")]
        return cls([token for token in tokens if len(token) == 1], inner)


def learn_tokenizer(
    texts: Iterable[str],
    vocab_size: int = 30528,
    lowercase: bool = True,
    max_length: int = 512,
    strip_accents: bool | None = None,
    character_coverage: float = COVERAGE,
    every: int = 1,
) -> "PreTrainedTokenizerBase":
    """Learn a WordPiece vocabulary (Wu et al. 2016, section 4.1, as Devlin et al. 2018 use it).

    `max_length` is where the tokenizer cuts texts, in tokens.
    `strip_accents=None` follows `lowercase`, except for a text whose words differ by accents: it keeps them.
    `character_coverage` is the fraction of the text's characters that become tokens. Characters are counted in all
    texts, words in every n-th (`every`). The size is a multiple of 64, padded with `[unused0]`, ... where a small
    corpus has fewer tokens. Where many words have more than 100 characters, the tokenizer reads words up to 500 and is
    a PreTrainedTokenizerFast, because BertTokenizer is always limited to 100. Raises UserError where the vocabulary is
    too small for the characters.

    The same texts give the same vocabulary: the trainer breaks ties by token id, and would number `##` characters in
    the random order of a hash map (huggingface/tokenizers issue 1794), so they are passed to it in order, before the
    words.
    """
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

    refuse_outside("every", every, 1)
    if not 0 < character_coverage <= 1:
        raise UserError(f"character_coverage: {character_coverage} is not a fraction above 0 and up to 1")
    learner = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    learner.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    learner.decoder = decoders.WordPiece()
    with TemporaryDirectory() as folder:
        file = Path(folder) / "texts.txt"
        found = write_texts(strings_in("texts", texts), file, every)
        if not any(map(str.strip, found.counts)):
            raise UserError("texts: there is no text to learn a vocabulary from")
        if lowercase and strip_accents is None and found.needs_accents:
            strip_accents = False
        learner.normalizer = normalizers.BertNormalizer(lowercase=lowercase, strip_accents=strip_accents)
        alphabet = choose_alphabet(found.counts, learner, vocab_size, character_coverage)
        trainer = trainers.WordPieceTrainer(
            vocab_size=usable(vocab_size),
            special_tokens=[*SPECIAL_TOKENS, *(f"##{character}" for character in alphabet.inner)],
            initial_alphabet=alphabet.first,
            limit_alphabet=len(alphabet.first),
            min_frequency=2,
            show_progress=False,
        )
        learner.train([str(file)], trainer)
    vocabulary = learner.get_vocab()
    missing = -len(vocabulary) % VOCABULARY_MULTIPLE
    vocabulary |= {f"[unused{number}]": len(vocabulary) + number for number in range(missing)}
    options = {"do_lower_case": lowercase, "strip_accents": strip_accents, "model_max_length": max_length}
    return stock_tokenizer(vocabulary, LONGEST_WORD if found.has_long_words else STOCK_WORD, options)


def write_texts(texts: Iterator[str], file: Path, every: int) -> CharacterCounts:
    """Write every n-th text to a file, and count the characters of all.

    Halves of surrogate pairs are not written, nor words above LONGEST_WORD, such as a sequence of DNA. A syllable of
    Hangul counts as its two or three letters where it is in a long word: a tokenizer that strips accents divides it.
    """
    from tokenizers import pre_tokenizers

    split = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), pre_tokenizers.BertPreTokenizer()])
    counts, in_long_words, seen = np.zeros(sys.maxunicode + 1, dtype=np.int64), 0, 0
    with file.open("w", encoding="utf-8", errors="ignore") as stream:
        for batch in by_characters(texts, COUNTED_AT_ONCE):
            stream.writelines(TOO_LONG.sub(" ", text) + "\n" for text in batch[-seen % every :: every])
            seen += len(batch)
            joined = "\n".join(["", *batch, ""])
            codes = np.frombuffer(joined.encode("utf-32-le", "surrogatepass"), dtype=np.uint32)
            found = np.bincount(codes)
            counts[: len(found)] += found
            if ((codes >= FIRST_HANGUL) & (codes <= LAST_HANGUL)).any():
                joined = unicodedata.normalize("NFD", joined)
                codes = np.frombuffer(joined.encode("utf-32-le", "surrogatepass"), dtype=np.uint32)
            breaks = np.flatnonzero(codes <= ord(" "))
            starts = np.flatnonzero(np.diff(breaks) > STOCK_WORD + 1)
            runs = (joined[breaks[start] : breaks[start + 1]] for start in starts)
            words = split.pre_tokenize_str("".join(runs).encode(errors="ignore").decode())
            in_long_words += sum(len(word) for word, _ in words if STOCK_WORD < len(word) <= LONGEST_WORD)
    counts[0xD800:0xE000] = 0
    return CharacterCounts(Counter({chr(code): int(counts[code]) for code in np.flatnonzero(counts)}), in_long_words)


def choose_alphabet(counts: Counter[str], learner: "Tokenizer", vocab_size: int, coverage: float) -> Alphabet:
    """The most frequent characters after normalisation that make up `coverage` of the text; at least LEAST_ALPHABET
    where the vocabulary has room. Raises UserError where it is too small.
    """
    normalised: Counter[str] = Counter()
    can_be_inner: set[str] = set()
    for character, count in sorted(counts.items()):
        pieces = learner.pre_tokenizer.pre_tokenize_str(learner.normalizer.normalize_str(f"a{character}"))
        words = [word for word, _ in pieces] or [""]
        can_be_inner.update(words[0][1:])
        for part in "".join(words)[1:]:
            normalised[part] += count

    def alphabet(size: int) -> Alphabet:
        return Alphabet(sorted(ranked[:size]), sorted(can_be_inner.intersection(ranked[:size])))

    ranked = sorted(normalised, key=lambda character: (-normalised[character], character))
    covered = np.cumsum([normalised[character] for character in ranked]) / max(normalised.total(), 1)
    needed = int(np.searchsorted(covered, coverage)) + 1
    required = alphabet(needed)
    if required.tokens > usable(vocab_size):
        raise UserError(
            f"a vocabulary of {vocab_size:,} is too small for the {len(required.first):,} characters that make up "
            f"{coverage:.6g} of this text; raise vocab_size to at least {required.enough:,}, or lower "
            "character_coverage"
        )
    return alphabet(max(needed, min(LEAST_ALPHABET, usable(vocab_size) // 4)))


def stock_tokenizer(
    vocabulary: dict[str, int], longest_word: int, options: dict[str, Any]
) -> "PreTrainedTokenizerBase":
    """A BertTokenizer, or the same as a PreTrainedTokenizerFast, which alone keeps `longest_word` when it is loaded."""
    from transformers import BertTokenizer, PreTrainedTokenizerFast

    tokenizer = BertTokenizer(vocab=vocabulary, **options)
    if longest_word == STOCK_WORD:
        return tokenizer
    tokenizer.backend_tokenizer.model.max_input_chars_per_word = longest_word
    roles = {f"{token[1:-1].lower()}_token": token for token in SPECIAL_TOKENS}
    options = options | roles | {"tokenize_chinese_chars": True, "model_input_names": tokenizer.model_input_names}
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer.backend_tokenizer, **options)


def load_tokenizer(path: str | Path) -> "PreTrainedTokenizerBase":
    """Load a BERT tokenizer from a folder or the Hub; raises UserError where it is missing or not a BERT tokenizer."""
    from transformers import AutoTokenizer

    path = os.path.expanduser(path)
    refuse_unknown_model(path, f"no tokenizer in {path!r}")
    try:
        tokenizer = for_clean_texts(AutoTokenizer.from_pretrained(path, trust_remote_code=False))
    except Exception as error:  # of any class: `tokenizers` has none of its own for a damaged file
        lacks = isinstance(error, ValueError) and Path(path).is_dir() and not (Path(path) / "tokenizer.json").exists()
        why = "it has no tokenizer.json" if lacks else first_line(error)
        if lacks and (inner := Path(path) / "tokenizer").is_dir():
            why += f"; give {inner}"
        raise UserError(f"no tokenizer in {str(path)!r}: {why}") from None
    refuse_other_tokens(tokenizer, f"the tokenizer in {str(path)!r}")
    return tokenizer


def refuse_other_tokens(tokenizer: "PreTrainedTokenizerBase", what: str) -> None:
    """Raise UserError where a tokenizer, named `what`, lacks BERT's special tokens, or has ids that none has.

    The special tokens get their roles where it has none for them, as one that was made of a tokenizer.json.
    """
    vocabulary = tokenizer.get_vocab()
    if missing := [token for token in SPECIAL_TOKENS if token not in vocabulary]:
        raise UserError(f"{what} has no {', '.join(missing)}: it is not a BERT tokenizer")
    if max(vocabulary.values()) >= len(vocabulary):
        raise UserError(
            f"{what} has {len(vocabulary):,} tokens, but ids up to {max(vocabulary.values()):,}; does its vocab.txt "
            "have lines twice?"
        )
    for token in SPECIAL_TOKENS:
        role = f"{token[1:-1].lower()}_token"
        if getattr(tokenizer, role, None) is None:
            setattr(tokenizer, role, token)
        elif (other := getattr(tokenizer, role)) != token:
            raise UserError(f"{what} has {other} in the place of {token}: it is not a BERT tokenizer")


def all_special_ids(tokenizer: "PreTrainedTokenizerBase") -> set[int]:
    """The ids of BERT's special tokens, and of those that someone has added."""
    added = {number for number, token in tokenizer.added_tokens_decoder.items() if token.special}
    return added | set(tokenizer.all_special_ids) | set(tokenizer.convert_tokens_to_ids(list(SPECIAL_TOKENS)))


def maskable_ids(tokenizer: "PreTrainedTokenizerBase") -> np.ndarray:
    """The ids that can be masked and put in place of others, sorted, (R,): all but special and unused tokens."""
    special, vocabulary = all_special_ids(tokenizer), tokenizer.get_vocab().items()
    return np.array(sorted(i for token, i in vocabulary if i not in special and not UNUSED.fullmatch(token)))


def tokenizer_fingerprint(tokenizer: "PreTrainedTokenizerBase") -> str:
    """A hash of the vocabulary, its normalisation and a longest word of its own: a store and a model must agree."""
    backend = tokenizer.backend_tokenizer
    vocabulary = sorted(backend.get_vocab().items(), key=lambda item: item[1])
    longest_word = getattr(backend.model, "max_input_chars_per_word", STOCK_WORD)
    of_all = (vocabulary, repr(backend.normalizer), *([] if longest_word == STOCK_WORD else [longest_word]))
    return hashlib.sha256(repr(of_all).encode()).hexdigest()


def strips_accents(tokenizer: "PreTrainedTokenizerBase") -> bool:
    """Whether a tokenizer removes marks, also such as the Hindi vowel sign u."""
    normalizer = tokenizer.backend_tokenizer.normalizer
    return normalizer is not None and "\u0941" not in normalizer.normalize_str("\u0915\u0941")


def lowercases(tokenizer: "PreTrainedTokenizerBase") -> bool:
    """Whether a tokenizer makes capitals small letters."""
    normalizer = tokenizer.backend_tokenizer.normalizer
    return normalizer is not None and normalizer.normalize_str("I") == "i"


def most_unknown(tokenizer: "PreTrainedTokenizerBase", texts: list[str], number: int = 10) -> dict[str, int]:
    """The words that become [UNK] most often, with their counts."""
    tokenizer.backend_tokenizer.no_truncation()
    counts: Counter[str] = Counter()
    for text, encoding in zip(texts, tokenizer.backend_tokenizer.encode_batch(texts), strict=True):
        places = zip(encoding.ids, encoding.offsets, strict=True)
        counts.update(text[start:end] for token, (start, end) in places if token == tokenizer.unk_token_id)
    return dict(counts.most_common(number))

"""The tokenizer of a corpus: the given one or a new one, and what a user should know about it."""

import math
from collections import Counter
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING

import numpy as np

from bertpre.data.encoder import Encoder
from bertpre.data.sentences import split_sentences
from bertpre.data.tokenizer import (
    COVERAGE,
    Alphabet,
    CharacterCounts,
    learn_tokenizer,
    load_tokenizer,
    lowercases,
    strips_accents,
)
from bertpre.data.workspace import Part
from bertpre.errors import ArgumentError, UserError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

LEARNED_SHARE, LEAST_LEARNED, MOST_LEARNED = 0.125, 1 << 24, 1 << 30  # bytes of text to learn the vocabulary from


@dataclass(frozen=True)
class TokenizerOptions:
    """An existing tokenizer (`path`: a folder or Hub id), or else the arguments of `learn_tokenizer`."""

    vocab_size: int
    lowercase: bool
    max_length: int
    strip_accents: bool | None = None
    character_coverage: float = COVERAGE
    path: str | None = None


def obtain_tokenizer(given: TokenizerOptions, parts: list[Part]) -> "PreTrainedTokenizerBase":
    """Load the tokenizer that was asked for, or learn one from the cleaned parts.

    Raises ArgumentError for a vocabulary that is too small, and for a tokenizer that does not read word by word.
    """
    if given.path is None:
        options = asdict(given)
        del options["path"]
        try:
            texts = (text for part in parts for text in part.kept_texts())
            tokenizer = learn_tokenizer(texts, **options, every=learned_every(parts))
        except UserError as error:
            raise ArgumentError("tokenizer.vocab_size", str(error)) from None
    else:
        tokenizer = given_tokenizer(given.path)
        try:
            refuse_other_splitting(tokenizer, some_texts(parts)[:100])
        except UserError as error:
            raise ArgumentError("tokenizer.path", str(error)) from None
    return tokenizer


def given_tokenizer(path: str) -> "PreTrainedTokenizerBase":
    """The existing tokenizer that was asked for."""
    try:
        return load_tokenizer(path)
    except UserError as error:
        raise ArgumentError("tokenizer.path", str(error)) from None


def learned_every(parts: list[Part]) -> int:
    """The words of every n-th text are learned: of all texts of a small corpus, of a sample of a large one.

    The trainer keeps each distinct word in memory and is slow. On IMDB a vocabulary from every third review needs
    0.02 % more tokens for other reviews, from every sixth 0.07 %, from every tenth 0.15 %.
    """
    size = sum(part.file("texts").stat().st_size for part in parts)
    wanted = min(max(LEARNED_SHARE * size, LEAST_LEARNED), MOST_LEARNED)
    return math.ceil(size / wanted)


def refuse_other_splitting(tokenizer: "PreTrainedTokenizerBase", texts: list[str]) -> None:
    """Raise UserError where a tokenizer encodes a sentence differently from its words one by one."""
    sentences = [sentence for text in texts for sentence in split_sentences(text)]
    backend = tokenizer.backend_tokenizer
    kind = type(backend.model).__name__
    if kind != "WordPiece" or backend.model.continuing_subword_prefix != "##":  # whole words would be masked in part
        raise UserError(
            f"{tokenizer.name_or_path} is not a WordPiece tokenizer like BERT's, with ## before the parts of a word, "
            f"but {kind}; choose another, or give none to learn one"
        )
    added = [token for token in backend.get_added_tokens_decoder().values() if not token.special]
    if spaced := [token.content for token in added if token.lstrip or token.rstrip or len(token.content.split()) > 1]:
        raise UserError(
            f"{tokenizer.name_or_path} has added tokens with spaces, such as {spaced[0]!r}, and a corpus is read word "
            "by word; choose another"
        )
    encoder = Encoder(backend)
    ids, offsets = encoder.encode(sentences)
    expected = encoder.encode_texts(sentences, split_special=True)
    for sentence, start, end, whole in zip(sentences, offsets[:-1], offsets[1:], expected, strict=True):
        if not np.array_equal(ids[start:end], whole):
            raise UserError(
                f"{tokenizer.name_or_path} is not a WordPiece tokenizer like BERT's: it encodes {sentence[:60]!r} "
                "differently from its single words; choose another, or give none to learn one"
            )


def some_texts(parts: list[Part]) -> list[str]:
    """The beginnings of kept texts from all over the corpus, at most 2,000."""
    some: list[str] = []
    for part in parts[:: -(-len(parts) // 5)]:
        texts = part.kept_texts()
        some += [text[:2000] for text in texts[:: -(-len(texts) // 400) or 1]]
    return some


def tokenizer_notes(given: TokenizerOptions, tokenizer: "PreTrainedTokenizerBase", texts: list[str]) -> list[str]:
    """What a user should know about the tokenizer and some texts of the corpus."""
    notes = []
    enough = Alphabet.of(tokenizer.get_vocab()).enough
    if given.path is None and given.vocab_size < enough:
        notes.append(
            f"warning: tokenizer.vocab_size={given.vocab_size} leaves little room for words beside the characters "
            f"of this text: {enough} would do"
        )
    counts = CharacterCounts(Counter("".join(texts)))
    if counts.has_dotless_i and lowercases(tokenizer):
        remedy = "set tokenizer.lowercase=false" if given.path is None else "choose another tokenizer.path"
        notes.append(
            "warning: the tokenizer lowercases I to i, and in this text it is the capital of ı, as in Turkish and "
            f"Azerbaijani; {remedy}"
        )
    if counts.needs_accents:
        if strips_accents(tokenizer):
            remedy = "set tokenizer.strip_accents=false" if given.path is None else "choose another tokenizer.path"
            notes.append(
                "warning: the tokenizer strips accents, and this text has many (German umlauts, Vietnamese tones, "
                f"Hindi vowels): different words become one; {remedy}"
            )
        elif given.path is None and given.lowercase and given.strip_accents is None:
            notes.append(
                "accents are not stripped, since this text has many (German umlauts, Vietnamese tones, Hindi "
                "vowels); set tokenizer.strip_accents to decide"
            )
    return notes

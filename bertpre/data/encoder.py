"""Sentences -> token ids, each distinct word encoded once: most words of a corpus are repetitions."""

import re
from collections import defaultdict
from itertools import count, islice
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from tokenizers import Tokenizer

SEPARATOR, WORDS_TOGETHER, SENTENCES_TOGETHER = "[SEP]", 1000, 1 << 14
MOST_IDS = 1 << 20  # ids of about half a million remembered words; above it the memory is cleared


class Encoder:
    """A WordPiece tokenizer that remembers the ids of words.

    Splitting at spaces first changes no id: BERT's normalisation works on single characters, and its pre-tokenizer
    always splits at spaces. So a sentence's ids are the ids of its words, concatenated.

    A special token that is written in a text, such as "[SEP]", is text and becomes "[", "sep", "]", as in google's
    create_pretraining_data.py; the stock tokenizer encodes like this with `split_special_tokens=True`.
    """

    def __init__(self, tokenizer: "Tokenizer", most_ids: int = MOST_IDS) -> None:
        tokenizer.no_padding()  # whatever its file says
        tokenizer.no_truncation()
        self.tokenizer, self.most_ids = tokenizer, most_ids
        self.vocab_size, self.separator_id = tokenizer.get_vocab_size(), tokenizer.token_to_id(SEPARATOR)
        special = [token.content for token in tokenizer.get_added_tokens_decoder().values() if token.special]
        self.special = re.compile("|".join(map(re.escape, special)))
        self.forget()

    @classmethod
    def load(cls, folder: Path) -> "Encoder":
        """Load the tokenizer that `save_pretrained` wrote into a folder, without importing transformers."""
        from tokenizers import Tokenizer

        return cls(Tokenizer.from_file(str(folder / "tokenizer.json")))

    @staticmethod
    def serves(tokenizer: "Tokenizer") -> bool:
        """Whether a tokenizer works as BERT's: WordPiece on words, and no added tokens but special ones."""
        kinds = [type(part).__name__ for part in (tokenizer.model, tokenizer.normalizer, tokenizer.pre_tokenizer)]
        added = tokenizer.get_added_tokens_decoder().values()
        is_plain = all(token.special and not (token.lstrip or token.rstrip or token.single_word) for token in added)
        has_separator = tokenizer.token_to_id(SEPARATOR) is not None
        return kinds == ["WordPiece", "BertNormalizer", "BertPreTokenizer"] and is_plain and has_separator

    def forget(self) -> None:
        """Clear the memory."""
        # A word's index into `lengths` and `starts`; a new word gets the next.
        self.numbers: defaultdict[str, int] = defaultdict(count().__next__)
        self.ids = np.zeros(0, dtype=np.int32)
        self.lengths = self.starts = np.zeros(0, dtype=np.int64)

    def encode(self, sentences: list[str]) -> tuple[np.ndarray, np.ndarray]:
        """Token ids of all sentences, (T,), and their offsets, (number of sentences + 1,).

        No special tokens are added. Words must be separated by single spaces, as `clean_text` leaves them.
        """
        starts = range(0, len(sentences), SENTENCES_TOGETHER)
        encoded = [self.encode_some(sentences[start : start + SENTENCES_TOGETHER]) for start in starts]
        ids = [np.zeros(0, dtype=np.int32), *(ids for ids, _ in encoded)]
        lengths = [np.zeros(1, dtype=np.int64), *(lengths for _, lengths in encoded)]
        return np.concatenate(ids), np.cumsum(np.concatenate(lengths))

    def encode_some(self, sentences: list[str]) -> tuple[np.ndarray, np.ndarray]:
        """Token ids of some sentences, (T,), and how many each has, (number of sentences,)."""
        import pyarrow as pa
        from pyarrow import compute

        if len(self.ids) > self.most_ids:
            self.forget()
        words_of = compute.split_pattern(pa.array(sentences, pa.large_string()), " ")
        words = words_of.flatten().dictionary_encode()
        known = np.fromiter(map(self.numbers.__getitem__, words.dictionary.to_pylist()), dtype=np.int64)
        self.learn(list(islice(self.numbers, len(self.lengths), None)))
        numbers = known[words.indices.to_numpy()]
        lengths = self.lengths[numbers]
        ends = np.concatenate([[0], np.cumsum(lengths)])
        # For each word in turn: where its ids start in memory, plus 0, 1, 2, ... within the word.
        places = np.repeat(self.starts[numbers] - ends[:-1], lengths) + np.arange(ends[-1])
        return self.ids[places], np.diff(ends[words_of.offsets.to_numpy()])

    def learn(self, words: list[str]) -> None:
        """Encode new words and remember them.

        Many are joined by a special token: a call for each word would cost more than its encoding. The tokenizer
        splits at special tokens first, so no id changes. Words that contain one are encoded one by one, as text.
        """
        groups = [words[start : start + WORDS_TOGETHER] for start in range(0, len(words), WORDS_TOGETHER)]
        texts = ["".join(f"{word}{SEPARATOR}" for word in group) for group in groups]
        all_lengths, all_ids = [self.lengths], [self.ids]
        for group, ids in zip(groups, self.encode_texts(texts, split_special=False), strict=True):
            if self.special.search(" ".join(group)):
                parts = self.encode_texts(group, split_special=True)
                lengths, ids = np.array([len(part) for part in parts]), np.concatenate(parts)
            else:
                ends = np.flatnonzero(ids == self.separator_id)
                lengths, ids = np.diff(ends, prepend=-1) - 1, ids[ids != self.separator_id]
            all_lengths.append(lengths)
            all_ids.append(ids)
        self.lengths, self.ids = np.concatenate(all_lengths), np.concatenate(all_ids)
        self.starts = np.cumsum(self.lengths) - self.lengths

    def encode_texts(self, texts: list[str], split_special: bool) -> list[np.ndarray]:
        """The tokenizer's ids of each text; special tokens in it are found, or else split like other text."""
        self.tokenizer.encode_special_tokens = split_special
        encodings = self.tokenizer.encode_batch_fast(texts, add_special_tokens=False)
        self.tokenizer.encode_special_tokens = False  # as every tokenizer begins
        return [np.array(encoding.ids, dtype=np.int32) for encoding in encodings]

"""Sentences -> token ids, each distinct word encoded once: most words of a corpus are repeats."""

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from tokenizers import Tokenizer

MOST_IDS = 1 << 22  # ids of remembered words, 16 MB; beyond it the memory starts afresh


class Encoder:
    """A WordPiece tokenizer with a memory of words.

    Splitting at spaces first changes no id: BERT's normalisation looks at single characters, and its pre-tokenizer
    never joins what a space parts. So a sentence's ids are its words' ids, one after the other.
    """

    def __init__(self, tokenizer: "Tokenizer", most_ids: int = MOST_IDS) -> None:
        self.tokenizer, self.most_ids = tokenizer, most_ids
        self.vocab_size = tokenizer.get_vocab_size()
        self.forget()

    @classmethod
    def load(cls, folder: Path) -> "Encoder":
        """The tokenizer that `save_pretrained` wrote into a folder, without importing transformers."""
        from tokenizers import Tokenizer

        return cls(Tokenizer.from_file(str(folder / "tokenizer.json")))

    def forget(self) -> None:
        """Begin with an empty memory."""
        self.numbers: dict[str, int] = {}  # of each word, its place in `lengths` and `starts`
        self.ids = np.zeros(0, dtype=np.int32)
        self.lengths = self.starts = np.zeros(0, dtype=np.int64)

    def encode(self, sentences: list[str]) -> tuple[np.ndarray, np.ndarray]:
        """Token ids of all sentences, (T,), and where each begins, and the end, (number of sentences + 1,).

        No special tokens are added. Words are parted by single spaces, as `clean_text` leaves them.
        """
        if not sentences:
            return np.zeros(0, dtype=np.int32), np.zeros(1, dtype=np.int64)
        words = " ".join(sentences).split(" ")
        if len(self.ids) > self.most_ids:
            self.forget()
        self.learn(sorted(set(words).difference(self.numbers)))
        numbers = np.fromiter(map(self.numbers.__getitem__, words), dtype=np.int64, count=len(words))
        lengths = self.lengths[numbers]
        ends = np.cumsum(lengths)
        # Word after word: where its ids begin in memory, plus 0, 1, 2, ... within the word.
        places = np.repeat(self.starts[numbers] - (ends - lengths), lengths) + np.arange(ends[-1])
        last_words = np.cumsum([sentence.count(" ") + 1 for sentence in sentences]) - 1
        return self.ids[places], np.concatenate([[0], ends[last_words]])

    def learn(self, words: list[str]) -> None:
        """Encode new words and remember them."""
        if not words:
            return
        encodings = [encoding.ids for encoding in self.tokenizer.encode_batch_fast(words, add_special_tokens=False)]
        self.numbers.update(zip(words, range(len(self.numbers), len(self.numbers) + len(words)), strict=True))
        lengths = np.fromiter(map(len, encodings), dtype=np.int64, count=len(words))
        self.lengths = np.concatenate([self.lengths, lengths])
        self.ids = np.concatenate([self.ids, np.fromiter((i for ids in encodings for i in ids), dtype=np.int32)])
        self.starts = np.cumsum(self.lengths) - self.lengths

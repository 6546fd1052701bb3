"""The tokenizer: a WordPiece vocabulary learned from the corpus, saved as a stock BERT tokenizer."""

import hashlib
import re
import sys
from collections import Counter
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING

import numpy as np

from bertpre.errors import UserError, first_line

if TYPE_CHECKING:
    from tokenizers import Tokenizer
    from transformers import PreTrainedTokenizerBase

SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
UNUSED = re.compile(r"\[unused\d+\]")
VOCABULARY_MULTIPLE = 64  # the vocabulary's matrix product is fastest when its width is a multiple of this
ALPHABET_SIZE = 1000  # characters that are tokens; a word with a rarer one becomes [UNK]


def learn_tokenizer(
    texts: Iterator[str], vocab_size: int, lowercase: bool, max_length: int, strip_accents: bool | None = None
) -> "PreTrainedTokenizerBase":
    """Learn a WordPiece vocabulary (Wu et al. 2016, section 4.1, as Devlin et al. 2018 use it).

    `strip_accents=None` follows `lowercase`. The size is a multiple of 64, padded with `[unused0]`, ... where a small
    corpus has fewer tokens. The same texts give the same vocabulary: the trainer breaks ties by token id, and would
    number `##` characters in the random order of a hash map (huggingface/tokenizers issue 1794), so they are passed to
    it in order, before the words.
    """
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
    from transformers import BertTokenizer

    learner = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    learner.normalizer = normalizers.BertNormalizer(lowercase=lowercase, strip_accents=strip_accents)
    learner.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    learner.decoder = decoders.WordPiece()
    with TemporaryDirectory() as folder:
        file = Path(folder) / "texts.txt"
        first, inner = characters(write_texts(texts, file), learner)
        trainer = trainers.WordPieceTrainer(
            vocab_size=vocab_size // VOCABULARY_MULTIPLE * VOCABULARY_MULTIPLE,
            special_tokens=[*SPECIAL_TOKENS, *(f"##{character}" for character in inner)],
            initial_alphabet=first,
            limit_alphabet=ALPHABET_SIZE,
            min_frequency=2,
            show_progress=False,
        )
        learner.train([str(file)], trainer)
    vocabulary = learner.get_vocab()
    missing = -len(vocabulary) % VOCABULARY_MULTIPLE
    vocabulary |= {f"[unused{number}]": len(vocabulary) + number for number in range(missing)}
    return BertTokenizer(
        vocab=vocabulary, do_lower_case=lowercase, strip_accents=strip_accents, model_max_length=max_length
    )


def write_texts(texts: Iterator[str], file: Path) -> Counter[str]:
    """Write the texts to a file; returns how often each character occurs."""
    counts = np.zeros(sys.maxunicode + 1, dtype=np.int64)
    with file.open("w", encoding="utf-8") as stream:
        while batch := list(islice(texts, 1000)):
            joined = "\n".join(batch) + "\n"
            stream.write(joined)
            counts += np.bincount(np.frombuffer(joined.encode("utf-32-le"), dtype=np.uint32), minlength=len(counts))
    return Counter({chr(code): int(counts[code]) for code in np.flatnonzero(counts)})


def characters(counts: Counter[str], learner: "Tokenizer") -> tuple[list[str], list[str]]:
    """The most frequent characters after normalisation, and those that can occur inside a word; both sorted."""
    normalised: Counter[str] = Counter()
    inner: set[str] = set()
    for character, count in sorted(counts.items()):
        pieces = learner.pre_tokenizer.pre_tokenize_str(learner.normalizer.normalize_str(f"a{character}"))
        words = [word for word, _ in pieces] or [""]
        inner.update(words[0][1:])
        for part in "".join(words)[1:]:
            normalised[part] += count
    kept = sorted(normalised, key=lambda character: (-normalised[character], character))[:ALPHABET_SIZE]
    return sorted(kept), sorted(inner.intersection(kept))


def load_tokenizer(path: str | Path) -> "PreTrainedTokenizerBase":
    """Load a BERT tokenizer from a folder or the Hub; raises UserError where it is missing or not a BERT tokenizer."""
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(str(path))
    except (OSError, ValueError) as error:
        raise UserError(f"no tokenizer in {str(path)!r}: {first_line(error)}") from None
    missing = [token for token in SPECIAL_TOKENS if token not in tokenizer.get_vocab()]
    if missing:
        raise UserError(f"the tokenizer in {str(path)!r} has no {', '.join(missing)}: it is not a BERT tokenizer")
    return tokenizer


def maskable_ids(tokenizer: "PreTrainedTokenizerBase") -> np.ndarray:
    """The ids that can be masked and put in place of others, sorted, (R,): all but special and unused tokens."""
    special = set(tokenizer.all_special_ids) | set(tokenizer.convert_tokens_to_ids(list(SPECIAL_TOKENS)))
    vocabulary = tokenizer.get_vocab().items()
    return np.array(sorted(i for token, i in vocabulary if i not in special and not UNUSED.fullmatch(token)))


def tokenizer_fingerprint(tokenizer: "PreTrainedTokenizerBase") -> str:
    """A hash of the vocabulary and its normalisation: a store and a model must agree on it."""
    backend = tokenizer.backend_tokenizer
    vocabulary = sorted(backend.get_vocab().items(), key=lambda item: item[1])
    return hashlib.sha256(repr((vocabulary, repr(backend.normalizer))).encode()).hexdigest()

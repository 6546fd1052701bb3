"""The tokenizer: a WordPiece vocabulary learned from the corpus, saved as a stock BERT tokenizer."""

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from bertpre.errors import UserError

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
VOCABULARY_MULTIPLE = 64  # the vocabulary's matrix product is fastest when its width is a multiple of this


def learn_tokenizer(texts: Iterator[str], vocab_size: int, lowercase: bool, max_length: int) -> "PreTrainedTokenizerBase":
    """Learn a WordPiece vocabulary (Wu et al. 2016, section 4.1, as Devlin et al. 2018 use it).

    The size is a multiple of 64: `[unused0]`, ... fill up what a small corpus leaves open.
    """
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers
    from transformers import BertTokenizer

    learner = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    learner.normalizer = normalizers.BertNormalizer(lowercase=lowercase)
    learner.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    learner.decoder = decoders.WordPiece()
    trainer = trainers.WordPieceTrainer(
        vocab_size=vocab_size // VOCABULARY_MULTIPLE * VOCABULARY_MULTIPLE,
        special_tokens=list(SPECIAL_TOKENS),
        min_frequency=2,
        show_progress=False,
    )
    learner.train_from_iterator(texts, trainer)
    vocabulary = learner.get_vocab()
    missing = -len(vocabulary) % VOCABULARY_MULTIPLE
    vocabulary |= {f"[unused{number}]": len(vocabulary) + number for number in range(missing)}
    return BertTokenizer(vocab=vocabulary, do_lower_case=lowercase, model_max_length=max_length)


def load_tokenizer(path: str | Path) -> "PreTrainedTokenizerBase":
    """Load a BERT tokenizer from a folder or the Hub; raises UserError where it is missing or of another kind."""
    from transformers import AutoTokenizer

    try:
        tokenizer = AutoTokenizer.from_pretrained(str(path))
    except (OSError, ValueError) as error:
        raise UserError(f"no tokenizer in {str(path)!r}: {str(error).strip().splitlines()[0]}") from None
    missing = [token for token in SPECIAL_TOKENS if token not in tokenizer.get_vocab()]
    if missing:
        raise UserError(f"the tokenizer in {str(path)!r} has no {', '.join(missing)}: it is not a BERT tokenizer")
    return tokenizer


def encode_sentences(tokenizer: "PreTrainedTokenizerBase", sentences: list[str]) -> list[list[int]]:
    """Token ids of each sentence, without special tokens."""
    encodings = tokenizer.backend_tokenizer.encode_batch_fast(sentences, add_special_tokens=False)
    return [encoding.ids for encoding in encodings]


def fingerprint(tokenizer: "PreTrainedTokenizerBase") -> str:
    """A hash of the vocabulary and its normalisation: a store and a model must agree on it."""
    backend = tokenizer.backend_tokenizer
    vocabulary = sorted(backend.get_vocab().items(), key=lambda item: item[1])
    return hashlib.sha256(repr((vocabulary, repr(backend.normalizer))).encode()).hexdigest()

"""The store for the Python interface: built from texts, opened from a folder or a run directory."""

import copy
import os
from collections.abc import Iterable
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from bertpre.data.build import StoreBuilder
from bertpre.data.corpus_tokenizer import TokenizerOptions
from bertpre.data.randomness import LARGEST_SEED
from bertpre.data.store import SPLITS, Shard, open_shards, read_store_manifest
from bertpre.data.texts import GivenTexts
from bertpre.data.tokenizer import load_tokenizer, tokenizer_fingerprint
from bertpre.errors import ArgumentError, UserError, reason, refuse_outside, refuse_unknown
from bertpre.files import locked, make_folder, save_tokenizer

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

LONGEST = 512  # tokens, where a tokenizer cuts texts; pairs have a length of their own
ARGUMENTS = {"tokenizer.vocab_size": "vocab_size", "tokenizer.path": "tokenizer"}  # of `TokenStore.build`


class TokenStore:
    """The token ids of whole documents on disk, memory-mapped, with their tokenizer.

    `folder` holds `data/` and `tokenizer/`: a folder that `TokenStore.build` made, or a run directory. A copy that is
    pickled for another process opens the files again. Raises UserError where nothing is prepared in the folder.
    """

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        self.folder = Path(os.path.abspath(os.path.expanduser(folder)))
        if not (self.folder / "data" / "manifest.json").is_file():
            raise UserError(
                f"{folder}: there is no prepared data in this folder; build a store there with TokenStore.build, or "
                "give the directory of a run that has been prepared"
            )
        self.manifest = read_store_manifest(self.folder / "data")
        self.opened: dict[str, list[Shard]] = {}
        self.verified: set[str] = set()  # splits whose checksums were right

    @classmethod
    def build(
        cls,
        folder: str | os.PathLike[str],
        texts: Iterable[str],
        *,
        tokenizer: "PreTrainedTokenizerBase | str | os.PathLike[str] | None" = None,
        vocab_size: int = 30528,
        lowercase: bool = True,
        validation: Iterable[str] | None = None,
        held_out: Iterable[str] = (),
        min_characters: int = 1,
        near_duplicates: bool = False,
        validation_fraction: float = 0.01,
        seed: int = 0,
        workers: int = 1,
    ) -> Self:
        """Clean texts, drop duplicates, split them into sentences, encode and store them in a new folder.

        `tokenizer` is a BERT tokenizer, or its folder or Hub id; by default one of `vocab_size` is learned from the
        texts that are kept. Texts equal to one in `held_out` are dropped, and with `near_duplicates` texts almost equal
        to another. The split `validation` is `validation`, or else `validation_fraction` of the documents. An
        interrupted build resumes with the same arguments. `workers` above 1 start processes: a script then needs
        `if __name__ == "__main__":`. In a script that many processes run, let one build.

        Raises UserError for a folder in use, an unfit tokenizer, or too few documents.
        """
        folder = Path(folder).expanduser()
        refuse_outside("vocab_size", vocab_size, 64)
        refuse_outside("min_characters", min_characters, 1)
        if not 0 < validation_fraction < 0.5:
            raise UserError(f"validation_fraction: {validation_fraction} is not above 0 and below 0.5")
        refuse_outside("seed", seed, 0, LARGEST_SEED)
        refuse_outside("workers", workers, 1)
        if (folder / "data").exists():
            raise UserError(f"{folder}: has a store; open it with TokenStore({str(folder)!r}), or give another folder")
        try:
            make_folder(folder)
        except OSError as error:
            raise UserError(f"{folder}: cannot be written: {reason(error)}; give another folder") from None
        path = None if tokenizer is None else str(folder / "tokenizer")
        if isinstance(tokenizer, str | os.PathLike):
            path = os.path.expanduser(tokenizer)
        builder = StoreBuilder(
            folder=folder,
            sources=[GivenTexts(texts=texts)],
            tokenizer=TokenizerOptions(vocab_size=vocab_size, lowercase=lowercase, max_length=LONGEST, path=path),
            validation_fraction=validation_fraction,
            validation=None if validation is None else GivenTexts(path="validation", texts=validation),
            seed=seed,
            held_out=GivenTexts(path="held_out", texts=held_out),
            min_characters=min_characters,
            near_duplicates=near_duplicates,
            workers=workers,
        )
        try:
            with locked(folder, "folder"):
                if tokenizer is not None and not isinstance(tokenizer, str | os.PathLike):
                    save_tokenizer(copy.deepcopy(tokenizer), folder / "tokenizer", LONGEST)  # saving changes its length
                builder.build()
        except ArgumentError as error:
            raise UserError(f"{ARGUMENTS.get(error.argument, error.argument)}: {error.reason}") from None
        return cls(folder)

    @property
    def documents(self) -> int:
        """The number of documents, of both splits."""
        return self.manifest["documents"]

    @property
    def tokens(self) -> int:
        """The number of tokens, of both splits."""
        return self.manifest["tokens"]

    @cached_property
    def tokenizer(self) -> "PreTrainedTokenizerBase":
        """The tokenizer that the documents are encoded with."""
        return load_tokenizer(self.folder / "tokenizer")

    def shards(self, split: str = "train") -> list[Shard]:
        """The shards of `train` or `validation`, memory-mapped; their checksums are verified the first time.

        Raises UserError for a damaged file, or where `tokenizer/` is not the one that the store was made with.
        """
        refuse_unknown("split", split, SPLITS)
        if split not in self.opened:
            is_new = split not in self.verified
            tokenizer_hash = tokenizer_fingerprint(self.tokenizer) if is_new else None
            self.opened[split] = open_shards(self.folder / "data", split, tokenizer_hash, verify=is_new)
            self.verified.add(split)
        return self.opened[split]

    def __repr__(self) -> str:
        return f"TokenStore({str(self.folder)!r}): {self.documents:,} documents, {self.tokens:,} tokens"

    def __getstate__(self) -> dict[str, Any]:
        return {"folder": self.folder, "manifest": self.manifest, "opened": {}, "verified": self.verified}

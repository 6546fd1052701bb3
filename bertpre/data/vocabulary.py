"""The size of a vocabulary that is learned."""

VOCABULARY_MULTIPLE = 64  # the vocabulary's matrix product is fastest when its width is a multiple of this


def usable(vocab_size: int) -> int:
    """The largest size of a vocabulary up to this one."""
    return vocab_size // VOCABULARY_MULTIPLE * VOCABULARY_MULTIPLE

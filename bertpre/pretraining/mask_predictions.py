"""What the model predicts for masked words, shown with every evaluation."""

import re
import unicodedata
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from bertpre.data.store import Shard
from bertpre.training.sharding import is_sharded

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

    from bertpre.model.modeling_bertpre import BertPreForPreTraining


SHORTEST, LONGEST = 8, 24  # tokens of a sentence that is shown
COUNT = 3  # sentences
UNSPACED = r"\u3001-\u30ff\u3400-\u9fff\uff01-\uff5e"  # Chinese and Japanese characters, their punctuation too


def fill_masks(
    model: "BertPreForPreTraining", tokenizer: "PreTrainedTokenizerBase", shard: Shard
) -> list[dict[str, Any]]:
    """Mask one word in each of a few validation sentences; returns sentences, answers and the model's three guesses."""
    fillings: list[dict[str, Any]] = []
    model.eval()
    lengths, longest = np.diff(shard.sentences), min(LONGEST, model.config.max_position_embeddings - 2)
    for sentence in np.flatnonzero((lengths >= SHORTEST) & (lengths <= longest)):
        ids = shard.tokens[shard.sentences[sentence] : shard.sentences[sentence + 1]].tolist()
        words = tokenizer.convert_ids_to_tokens(ids)
        place = longest_word(words)
        if place is None:
            continue
        shown = [*ids[:place], tokenizer.mask_token_id, *ids[place + 1 :]]
        inputs = torch.tensor([[tokenizer.cls_token_id, *shown, tokenizer.sep_token_id]], device=model.device)
        with torch.no_grad():
            forward = model if is_sharded(model) else model.forward  # uncompiled, as in evaluate_batches
            logits = forward(input_ids=inputs).prediction_logits[0, place + 1]
        guesses = tokenizer.convert_ids_to_tokens(logits.topk(3).indices.tolist())
        fillings.append({"sentence": joined(tokenizer.decode(shown)), "answer": words[place], "guesses": guesses})
        if len(fillings) == COUNT:
            break
    return fillings


def joined(sentence: str) -> str:
    """A decoded sentence without the spaces that a tokenizer puts around each Chinese character, for reading."""
    return re.sub(rf"(?<=[{UNSPACED}]) (?=[{UNSPACED}\[])|(?<=\]) (?=[{UNSPACED}])", "", sentence)


def longest_word(words: list[str]) -> int | None:
    """The place of the longest word that is one token, not at the sentence's ends; None where there is none."""
    inside = range(3, len(words) - 2)
    whole = (place for place in inside if is_word(words[place]) and not words[place + 1].startswith("##"))
    return max(whole, key=lambda place: len(words[place]), default=None)


def is_word(token: str) -> bool:
    """Whether a token begins with a letter and has letters and marks alone; vowels of Hindi and Thai are marks."""
    return token[0].isalpha() and all(unicodedata.category(character)[0] in "LM" for character in token)

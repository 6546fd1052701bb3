"""What the model guesses for hidden words, shown with every evaluation."""

from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from bertpre.data.store import Shard
from bertpre.training.sharding import is_sharded

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase


def fill_masks(
    model: nn.Module, tokenizer: "PreTrainedTokenizerBase", shard: Shard, count: int = 3
) -> list[dict[str, Any]]:
    """Hide one word in each of a few validation sentences and let the model guess: sentence, answer, three guesses."""
    fillings = []
    model.eval()
    for number in range(len(shard.sentences) - 1):
        ids = shard.tokens[shard.sentences[number] : shard.sentences[number + 1]].tolist()
        words = tokenizer.convert_ids_to_tokens(ids)
        candidates = [
            place
            for place in range(3, len(words) - 2)
            if words[place].isalpha() and not words[place + 1].startswith("##")
        ]
        if not 8 <= len(ids) <= 24 or not candidates:
            continue
        place = max(candidates, key=lambda index: len(words[index]))
        shown = [*ids[:place], tokenizer.mask_token_id, *ids[place + 1 :]]
        inputs = torch.tensor([[tokenizer.cls_token_id, *shown, tokenizer.sep_token_id]], device=model.device)
        with torch.no_grad():
            forward = model if is_sharded(model) else model.forward  # uncompiled, as in evaluate_batches
            logits = forward(input_ids=inputs).prediction_logits[0, place + 1]
        guesses = tokenizer.convert_ids_to_tokens(logits.topk(3).indices.tolist())
        fillings.append({"sentence": tokenizer.decode(shown), "answer": words[place], "guesses": guesses})
        if len(fillings) == count:
            break
    return fillings

"""Attention before transformers: a recurrent encoder and decoder that look each other up (Bahdanau et al. 2014)."""

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence

from .dot_product import attend, padding_mask
from .scores import AdditiveScore


class RecurrentEncoder(nn.Module):
    """A bidirectional GRU: ids (B, T) and lengths (B,) to one state per token (B, T, 2E) and the last ones (B, 2E)."""

    def __init__(self, vocab_size: int, hidden_size: int) -> None:
        super().__init__()
        self.embeddings = nn.Embedding(vocab_size, hidden_size, padding_idx=0)
        self.recurrent = nn.GRU(hidden_size, hidden_size, batch_first=True, bidirectional=True)

    def forward(self, input_ids: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        # Packed, the backward direction starts at each sentence's own end and not in the padding.
        packed = pack_padded_sequence(self.embeddings(input_ids), lengths.cpu(), True, enforce_sorted=False)
        states, last = self.recurrent(packed)  # last: (2, B, E), one per direction
        states, _ = pad_packed_sequence(states, batch_first=True, total_length=input_ids.shape[1])
        return states, last.transpose(0, 1).flatten(1)


class RecurrentDecoder(nn.Module):
    """A GRU that writes the target token by token, and before each token looks at the source by additive attention.

    Without attention (`attends=False`) it sees the encoder's last states alone, at every token: all that the source
    says must then fit into one vector (Cho et al. 2014).
    """

    def __init__(self, vocab_size: int, hidden_size: int, attends: bool = True) -> None:
        super().__init__()
        self.embeddings = nn.Embedding(vocab_size, hidden_size, padding_idx=0)
        self.start = nn.Linear(2 * hidden_size, hidden_size)
        self.score = AdditiveScore(hidden_size, 2 * hidden_size, hidden_size) if attends else None
        self.cell = nn.GRUCell(3 * hidden_size, hidden_size)
        self.output = nn.Linear(4 * hidden_size, vocab_size)

    def first_state(self, last: Tensor) -> Tensor:
        """The state before the first token: (B, 2E) to (B, E)."""
        return torch.tanh(self.start(last))

    def step(
        self, previous: Tensor, state: Tensor, memory: Tensor, last: Tensor, mask: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Scores of the next token (B, V), the next state (B, E) and the attention (B, T), after token ids (B,)."""
        if self.score is None:
            context, weights = last, mask.squeeze(1) * 0.0
        else:
            context, weights = attend(self.score(state.unsqueeze(1), memory), memory, mask)
            context, weights = context.squeeze(1), weights.squeeze(1)  # one query: (B, 1, 2E), (B, 1, T)
        inputs = torch.cat((self.embeddings(previous), context), dim=-1)  # (B, 3E)
        state = self.cell(inputs, state)
        return self.output(torch.cat((state, inputs), dim=-1)), state, weights


class Seq2Seq(nn.Module):
    """Encoder and decoder.

    Ids are `source` (B, T), padded with 0 after `lengths` (B,), and `target` (B, S), which begins with its start token.
    """

    def __init__(self, source_size: int, target_size: int, hidden_size: int, attends: bool = True) -> None:
        super().__init__()
        self.encoder = RecurrentEncoder(source_size, hidden_size)
        self.decoder = RecurrentDecoder(target_size, hidden_size, attends)

    def forward(self, source: Tensor, lengths: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
        """Scores of each next token (B, S, V) and the attention (B, S, T), by teacher forcing: it reads the true words.

        Position i predicts target token i + 1.
        """
        memory, last = self.encoder(source, lengths)
        mask, state, steps = padding_mask(lengths, source.shape[1]), self.decoder.first_state(last), []
        for previous in target.unbind(dim=1):
            logits, state, weights = self.decoder.step(previous, state, memory, last, mask)
            steps.append((logits, weights))
        return torch.stack([logits for logits, _ in steps], 1), torch.stack([weights for _, weights in steps], 1)

    @torch.no_grad()
    def greedy(self, source: Tensor, lengths: Tensor, start: int, end: int, longest: int) -> tuple[Tensor, Tensor]:
        """The most probable token at each step: ids (B, S), 0 after `end`, and the attention (B, S, T)."""
        memory, last = self.encoder(source, lengths)
        mask, state = padding_mask(lengths, source.shape[1]), self.decoder.first_state(last)
        previous, is_done = torch.full_like(lengths, start), torch.zeros_like(lengths, dtype=torch.bool)
        tokens: list[Tensor] = []
        seen: list[Tensor] = []
        while len(tokens) < longest and not is_done.all():
            logits, state, weights = self.decoder.step(previous, state, memory, last, mask)
            previous = logits.argmax(dim=-1).masked_fill(is_done, 0)
            is_done |= previous == end
            tokens.append(previous)
            seen.append(weights)
        return torch.stack(tokens, 1), torch.stack(seen, 1)

    @torch.no_grad()
    def beam_search(
        self, source: Tensor, start: int, end: int, longest: int, beams: int = 4
    ) -> list[tuple[float, list[int]]]:
        """The best translations of one source (T,), best first, each with its mean log-probability per token.

        At every step each of the `beams` best beginnings is continued by every token, and the best are kept; one that
        reached `end` is set aside. The mean keeps short translations from winning for being short (Wu et al. 2016,
        section 7, with a power of 1). The search ends at `longest`, or when no beginning can become better than the
        best that has ended: with certain tokens from now to `longest`, its mean would be its total / `longest`.
        """
        lengths = torch.tensor([len(source)], device=source.device)
        memory, last = self.encoder(source.unsqueeze(0), lengths)
        mask, state = padding_mask(lengths, len(source)), self.decoder.first_state(last)
        alive, totals, finished = [[start]], torch.zeros(1, device=source.device), []
        for _ in range(longest):
            count, previous = len(alive), torch.tensor([tokens[-1] for tokens in alive], device=source.device)
            shared = [part.expand(count, *part.shape[1:]) for part in (memory, last, mask)]
            logits, state, _ = self.decoder.step(previous, state, *shared)
            scores = totals.unsqueeze(1) + logits.log_softmax(dim=-1)  # (beams, V)
            best, flat = scores.flatten().topk(min(beams, scores.numel()))
            rows, tokens = flat // scores.shape[1], flat % scores.shape[1]
            grown = [[*alive[row], token] for row, token in zip(rows.tolist(), tokens.tolist(), strict=True)]
            finished += [
                (total / (len(ids) - 1), ids[1:])
                for total, ids in zip(best.tolist(), grown, strict=True)
                if ids[-1] == end
            ]
            going = tokens != end
            alive = [ids for ids in grown if ids[-1] != end]
            state, totals = state[rows[going]], best[going]
            if not alive or (finished and max(finished)[0] >= totals.max().item() / longest):
                break
        if not finished:
            finished = [(total / (len(ids) - 1), ids[1:]) for total, ids in zip(totals.tolist(), alive, strict=True)]
        return sorted(finished, reverse=True)

"""The transformer block, and four models made of it (Vaswani et al. 2017): they differ in masks and inputs alone."""

import torch
from torch import Tensor, nn

from .dot_product import causal_mask
from .heads import MultiHeadAttention


def sinusoidal_positions(length: int, hidden_size: int) -> Tensor:
    """A vector for each position (S, E): sines and cosines of E / 2 frequencies (Vaswani et al. 2017, section 3.5).

    The vector of position p + k is a rotation of that of position p, the same rotation for every p.
    """
    exponents = torch.arange(0, hidden_size, 2) / hidden_size
    angles = torch.arange(length).unsqueeze(1) / 10_000**exponents  # (S, E / 2)
    return torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(1)


class Block(nn.Module):
    """One layer: attention, then a feed-forward network at every position, each with a residual and a norm.

    States (B, S, E) to (B, S, E). With `attends_to_memory` a second attention looks at `memory` (B, T, E), as in the
    decoder of a translator. `norm_first` puts the norms before instead of after (Xiong et al. 2020, figure 1).
    """

    def __init__(
        self, hidden_size: int, num_heads: int, attends_to_memory: bool = False, norm_first: bool = False,
        dropout: float = 0.0,
    ) -> None:  # fmt: skip
        super().__init__()
        self.attention = MultiHeadAttention(hidden_size, num_heads)
        self.cross_attention = MultiHeadAttention(hidden_size, num_heads) if attends_to_memory else None
        self.feed_forward = nn.Sequential(
            nn.Linear(hidden_size, 4 * hidden_size), nn.GELU(), nn.Linear(4 * hidden_size, hidden_size)
        )
        self.norms = nn.ModuleList(nn.LayerNorm(hidden_size) for _ in range(3 if attends_to_memory else 2))
        self.norm_first = norm_first
        self.dropout = nn.Dropout(dropout)
        self.weights: Tensor | None = None  # of the last self-attention, (B, H, S, S), to look at
        self.cross_weights: Tensor | None = None  # of the last attention to the memory, (B, H, S, T)

    def norm_before(self, number: int, states: Tensor) -> Tensor:
        """The norm of a part's input (pre-LN)."""
        return self.norms[number](states) if self.norm_first else states

    def norm_after(self, number: int, states: Tensor) -> Tensor:
        """The norm of the sum (post-LN)."""
        return states if self.norm_first else self.norms[number](states)

    def forward(
        self,
        hidden_states: Tensor,
        mask: Tensor | None = None,
        memory: Tensor | None = None,
        memory_mask: Tensor | None = None,
    ) -> Tensor:
        states = hidden_states
        mixed, weights = self.attention(self.norm_before(0, states), mask)
        states = self.norm_after(0, states + self.dropout(mixed))
        self.weights = weights.detach()
        if self.cross_attention is not None:
            mixed, weights = self.cross_attention(self.norm_before(1, states), memory_mask, memory)
            states = self.norm_after(1, states + self.dropout(mixed))
            self.cross_weights = weights.detach()
        changed = self.feed_forward(self.norm_before(-1, states))
        return self.norm_after(-1, states + self.dropout(changed))


class Stack(nn.Module):
    """Several blocks: (B, S, E) to (B, S, E); pre-LN blocks are followed by a last norm."""

    def __init__(
        self, hidden_size: int, num_heads: int, num_layers: int, attends_to_memory: bool = False,
        norm_first: bool = True, dropout: float = 0.0,
    ) -> None:  # fmt: skip
        super().__init__()
        self.layer = nn.ModuleList(
            Block(hidden_size, num_heads, attends_to_memory, norm_first, dropout) for _ in range(num_layers)
        )
        self.final_norm = nn.LayerNorm(hidden_size) if norm_first else nn.Identity()

    def forward(
        self,
        hidden_states: Tensor,
        mask: Tensor | None = None,
        memory: Tensor | None = None,
        memory_mask: Tensor | None = None,
    ) -> Tensor:
        for layer in self.layer:
            hidden_states = layer(hidden_states, mask, memory, memory_mask)
        return self.final_norm(hidden_states)


class LanguageModel(nn.Module):
    """Token scores (B, S, V) from ids (B, S): BERT where every position sees all, GPT with a causal mask.

    BERT is trained to restore tokens that were masked, GPT to predict the next one; the network is the same.
    """

    def __init__(
        self, vocab_size: int, hidden_size: int, num_heads: int, num_layers: int, longest: int, is_causal: bool
    ) -> None:
        super().__init__()
        self.embeddings = nn.Embedding(vocab_size, hidden_size)
        self.register_buffer("positions", sinusoidal_positions(longest, hidden_size))
        self.stack = Stack(hidden_size, num_heads, num_layers)
        self.is_causal = is_causal
        nn.init.normal_(self.embeddings.weight, std=hidden_size**-0.5)  # tied: the scores start near 1 in size

    def encode(self, input_ids: Tensor, mask: Tensor | None = None) -> Tensor:
        """The last hidden states (B, S, E); `mask` (B, 1, S) hides padding."""
        length = input_ids.shape[1]
        states = self.embeddings(input_ids) * self.embeddings.embedding_dim**0.5 + self.positions[:length]
        allowed = mask if mask is None else mask.unsqueeze(1)  # (B, 1, 1, S): the same for all heads
        if self.is_causal:
            causal = causal_mask(length).to(input_ids.device)
            allowed = causal if allowed is None else allowed & causal
        return self.stack(states, allowed)

    def forward(self, input_ids: Tensor, mask: Tensor | None = None) -> Tensor:
        return self.encode(input_ids, mask) @ self.embeddings.weight.T


class Translator(nn.Module):
    """An encoder and a decoder that looks at it (Vaswani et al. 2017, figure 1): scores (B, S, V) of the next tokens.

    `source` (B, T) is padded as `source_mask` (B, 1, T) says; position i of `target` (B, S) predicts token i + 1.
    """

    def __init__(
        self, source_size: int, target_size: int, hidden_size: int, num_heads: int, num_layers: int, longest: int
    ) -> None:
        super().__init__()
        self.source_embeddings = nn.Embedding(source_size, hidden_size)
        self.target_embeddings = nn.Embedding(target_size, hidden_size)
        self.register_buffer("positions", sinusoidal_positions(longest, hidden_size))
        self.encoder = Stack(hidden_size, num_heads, num_layers)
        self.decoder = Stack(hidden_size, num_heads, num_layers, attends_to_memory=True)
        self.output = nn.Linear(hidden_size, target_size)

    def forward(self, source: Tensor, source_mask: Tensor | None, target: Tensor) -> Tensor:
        allowed = None if source_mask is None else source_mask.unsqueeze(1)
        memory = self.encoder(self.source_embeddings(source) + self.positions[: source.shape[1]], allowed)
        states = self.target_embeddings(target) + self.positions[: target.shape[1]]
        causal = causal_mask(target.shape[1]).to(target.device)
        return self.output(self.decoder(states, causal, memory, allowed))


class VisionTransformer(nn.Module):
    """Class scores (B, C) from images (B, side, side): patches are the words (Dosovitskiy et al. 2020, section 3.1).

    A class token is put first; its last state is classified. Positions are learned.
    """

    def __init__(
        self, side: int, patch: int, num_classes: int, hidden_size: int, num_heads: int, num_layers: int
    ) -> None:
        super().__init__()
        self.patch = patch
        self.projection = nn.Linear(patch * patch, hidden_size)
        self.class_token = nn.Parameter(torch.zeros(1, 1, hidden_size))
        self.positions = nn.Parameter(torch.randn((side // patch) ** 2 + 1, hidden_size) * 0.02)
        self.stack = Stack(hidden_size, num_heads, num_layers)
        self.classifier = nn.Linear(hidden_size, num_classes)

    def patches(self, images: Tensor) -> Tensor:
        """Images (B, side, side) cut into rows of patches (B, S, patch * patch)."""
        rows = images.unfold(1, self.patch, self.patch).unfold(2, self.patch, self.patch)  # (B, n, n, patch, patch)
        return rows.flatten(3).flatten(1, 2)

    def forward(self, images: Tensor) -> Tensor:
        states = self.projection(self.patches(images))
        states = torch.cat((self.class_token.expand(len(states), -1, -1), states), dim=1)  # (B, 1 + S, E)
        return self.classifier(self.stack(states + self.positions)[:, 0])

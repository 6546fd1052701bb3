"""The layers of BertPre, in the order in which data passes them: architecture "bert", "modern", then what both share.

Shapes: B batch, S sequence, H heads, D head dim, E hidden, I intermediate, V vocabulary, R positions that are read.
Each module's docstring ends with the shape it returns. Attributes have the names that stock BERT and ModernBERT give
their weights, odd ones such as `attention.self`, `LayerNorm` or `Wqkv` too, because state-dict keys are made of them.

`read_positions` (B, R) is given to the last layer, where only some of its states are read. It computes keys and values
of all positions, and everything else at these: its shape is (B, R, E), its queries are (B, H, R, D). `read_rows` are
then the arguments of its attention that differ from the other layers'.

This file and its siblings need only torch, transformers and each other, because saving a model with custom code copies
these files alone.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn
from transformers.activations import ACT2FN
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from .configuration_bertpre import BertPreConfig
from .dropout_bertpre import Dropout, drop
from .losses_bertpre import Count, vocabulary_loss
from .rows_bertpre import attention_of_rows

Rotation = tuple[Tensor, Tensor]
WITHOUT_INTEREST = ("torch.", "transformers.", "accelerate.")  # modules whose hooks read no states: FSDP's, ...


def at_positions(states: Tensor, positions: Tensor | None) -> Tensor:
    """The states (B, S, E) at positions (B, R): (B, R, E). None stands for all positions."""
    return states if positions is None else states.gather(1, positions.unsqueeze(-1).expand(-1, -1, states.shape[-1]))


def is_watched(module: nn.Module) -> bool:
    """Whether a hook on it or inside it reads states or their gradients; those of WITHOUT_INTEREST do not."""
    hooks = [
        hook
        for part in module.modules()
        if part._forward_hooks or part._forward_pre_hooks or part._backward_hooks or part._backward_pre_hooks
        for table in (part._forward_hooks, part._forward_pre_hooks, part._backward_hooks, part._backward_pre_hooks)
        for hook in table.values()
    ]
    return any(not str(getattr(hook, "__module__", "")).startswith(WITHOUT_INTEREST) for hook in hooks)


# ---- attention, for both architectures -------------------------------------------------------------------------------


def eager_attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float,
    dropout: float = 0.0,
    **_: object,
) -> tuple[Tensor, Tensor]:
    """Scaled dot-product attention, softmax(Q K^T / sqrt(D)) V (Vaswani et al. 2017, section 3.2.1).

    Query, key and value are (B, H, S, D). The mask broadcasts to (B, H, S, S) and is added to the scores. Returns the
    weighted values (B, S, H, D) and the weights (B, H, S, S), which the fused kernels cannot show.
    """
    scores = torch.matmul(query, key.transpose(-2, -1)) * scaling  # (B, H, S, S)
    if attention_mask is not None:
        scores = scores + attention_mask
    weights = scores.softmax(dim=-1, dtype=torch.float32).to(query.dtype)
    weights = drop(weights, dropout, module.training)
    return torch.matmul(weights, value).transpose(1, 2).contiguous(), weights  # (B, H, S, D) -> (B, S, H, D)


def run_attention(
    module: nn.Module, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, **kwargs: object
) -> tuple[Tensor, Tensor | None]:
    """Run the configured kernel on (B, H, S, D); returns the joined heads (B, S, E) and the weights, if it has them.

    Where the arguments say that rows stand one after the other, eager and sdpa give way to a kernel that knows these.
    """
    config, kernel = module.config, module.config._attn_implementation
    attend: Callable = ALL_ATTENTION_FUNCTIONS.get_interface(kernel, eager_attention)
    if kwargs.get("cu_seq_lens_k") is not None and kernel in ("eager", "sdpa", "flex_attention"):
        attend = attention_of_rows
    dropout = config.attention_probs_dropout_prob if module.training else 0.0
    scaling = config.head_dim**-0.5
    mixed, weights = attend(module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **kwargs)
    return mixed.flatten(2), weights  # (B, S, H, D) -> (B, S, E)


# ---- architecture "bert": Devlin et al. 2018 -------------------------------------------------------------------------


class BertEmbeddings(nn.Module):
    """Sum of token, position and segment embeddings, normalised (Devlin et al. 2018, figure 2): (B, S, E)."""

    def __init__(self, config: BertPreConfig) -> None:
        super().__init__()
        self.word_embeddings = nn.Embedding(config.vocab_size, config.hidden_size, padding_idx=config.pad_token_id)
        self.position_embeddings = nn.Embedding(config.max_position_embeddings, config.hidden_size)
        self.token_type_embeddings = nn.Embedding(config.type_vocab_size, config.hidden_size)  # segments
        self.LayerNorm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.dropout = Dropout(config.hidden_dropout_prob)

    def forward(self, inputs_embeds: Tensor, token_type_ids: Tensor | None, position_ids: Tensor) -> Tensor:
        if token_type_ids is None:
            token_type_ids = torch.zeros_like(position_ids)
        embeddings = inputs_embeds + self.token_type_embeddings(token_type_ids) + self.position_embeddings(position_ids)
        return self.dropout(self.LayerNorm(embeddings))


class BertSelfAttention(nn.Module):
    """Multi-head self-attention with three biased projections (Vaswani et al. 2017, section 3.2.2): (B, S, E).

    The output projection follows in `BertResidual`.
    """

    def __init__(self, config: BertPreConfig) -> None:
        super().__init__()
        self.config = config
        self.is_causal = False  # without this attribute transformers' sdpa attends causally
        self.query = nn.Linear(config.hidden_size, config.hidden_size)
        self.key = nn.Linear(config.hidden_size, config.hidden_size)
        self.value = nn.Linear(config.hidden_size, config.hidden_size)

    def forward(
        self, hidden_states: Tensor, mask: Tensor | None, read_positions: Tensor | None = None, **kwargs: object
    ) -> tuple[Tensor, Tensor | None]:
        heads, asking = (-1, self.config.head_dim), at_positions(hidden_states, read_positions)
        query = self.query(asking).unflatten(-1, heads).transpose(1, 2)  # (B, S or R, E) -> (B, H, S or R, D)
        key = self.key(hidden_states).unflatten(-1, heads).transpose(1, 2)  # (B, S, E) -> (B, H, S, D)
        value = self.value(hidden_states).unflatten(-1, heads).transpose(1, 2)  # likewise
        return run_attention(self, query, key, value, mask, **kwargs)


class BertResidual(nn.Module):
    """End of a post-LN block: project (B, S, input_size), drop, add the block's input, normalise: (B, S, E).

    Vaswani et al. 2017, sections 3.1 and 5.4.
    """

    def __init__(self, config: BertPreConfig, input_size: int) -> None:
        super().__init__()
        self.dense = nn.Linear(input_size, config.hidden_size)
        self.LayerNorm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.dropout = Dropout(config.hidden_dropout_prob)

    def forward(self, hidden_states: Tensor, block_input: Tensor) -> Tensor:
        return self.LayerNorm(self.dropout(self.dense(hidden_states)) + block_input)


class BertLayer(GradientCheckpointingLayer):
    """Post-LN Transformer layer (Devlin et al. 2018, section 3): (B, S, E).

    Attention, then a feed-forward network of two linear layers (Vaswani et al. 2017, section 3.3) with GELU between
    them (Devlin et al. 2018, appendix A.2).
    """

    def __init__(self, config: BertPreConfig) -> None:
        super().__init__()
        # The nesting only makes stock BERT's keys: attention.self.query, attention.output.dense, intermediate.dense.
        attention = {"self": BertSelfAttention(config), "output": BertResidual(config, config.hidden_size)}
        self.attention = nn.ModuleDict(attention)
        self.intermediate = nn.ModuleDict({"dense": nn.Linear(config.hidden_size, config.intermediate_size)})
        self.activation = ACT2FN[config.hidden_act]
        self.output = BertResidual(config, config.intermediate_size)

    def forward(
        self, hidden_states: Tensor, mask: Tensor | None, read_positions: Tensor | None = None, **kwargs: object
    ) -> Tensor:
        mixed, _ = self.attention.self(hidden_states, mask, read_positions, **kwargs)
        hidden_states = self.attention.output(mixed, at_positions(hidden_states, read_positions))
        expanded = self.activation(self.intermediate.dense(hidden_states))  # (B, S, I)
        return self.output(expanded, hidden_states)


class BertEncoder(nn.Module):
    """The stack of post-LN layers: (B, S, E). It ignores `position_ids`, which the embeddings have added."""

    def __init__(self, config: BertPreConfig) -> None:
        super().__init__()
        self.layer = nn.ModuleList(BertLayer(config) for _ in range(config.num_hidden_layers))

    def forward(
        self,
        hidden_states: Tensor,
        mask: Tensor | None,
        position_ids: Tensor,
        read_positions: Tensor | None = None,
        read_rows: dict[str, object] | None = None,
        **kwargs: object,
    ) -> Tensor:
        *lower, last = self.layer
        for layer in lower:
            hidden_states = layer(hidden_states, mask, **kwargs)
        return last(hidden_states, mask, read_positions, **(kwargs | (read_rows or {})))


# ---- architecture "modern": Warner et al. 2024 (ModernBERT), with full attention in every layer ----------------------


def modern_norm(config: BertPreConfig) -> nn.LayerNorm:
    """LayerNorm without bias."""
    return nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps, bias=False)


class ModernEmbeddings(nn.Module):
    """Token embeddings, normalised: (B, S, E). Positions enter in attention.

    ModernBERT has no segments, but next sentence prediction needs them. So one vector is added to the tokens of the
    second segment and none to those of the first: a single text is encoded exactly as ModernBERT encodes it.
    """

    def __init__(self, config: BertPreConfig) -> None:
        super().__init__()
        self.word_embeddings = nn.Embedding(config.vocab_size, config.hidden_size, padding_idx=config.pad_token_id)
        self.second_segment = nn.Parameter(torch.zeros(config.hidden_size))
        self.norm = modern_norm(config)
        self.dropout = Dropout(config.hidden_dropout_prob)

    def forward(self, inputs_embeds: Tensor, token_type_ids: Tensor | None, position_ids: Tensor) -> Tensor:
        if token_type_ids is None:  # the vector still takes part: data parallelism needs a gradient for every weight
            token_type_ids = torch.zeros_like(position_ids)
        embeddings = inputs_embeds + token_type_ids.unsqueeze(-1) * self.second_segment  # (B, S, E) + (B, S, 1) * (E,)
        return self.dropout(self.norm(embeddings))


def rotary_rotation(config: BertPreConfig, position_ids: Tensor) -> Rotation:
    """Cosines and sines of RoPE for positions (1 or B, S), each (1 or B, 1, S, D), in fp32 (Su et al. 2021, 3.4.2).

    Recomputed in every forward pass: that is cheap compared with one layer, and `from_pretrained` would lose a buffer.
    """
    exponents = torch.arange(0, config.head_dim, 2, device=position_ids.device, dtype=torch.float32) / config.head_dim
    frequencies = 1.0 / (config.rope_theta**exponents)  # (D/2,)
    angles = position_ids[:, None, :, None].float() * frequencies  # (1 or B, 1, S, D/2)
    angles = torch.cat((angles, angles), dim=-1)  # (1 or B, 1, S, D)
    return angles.cos(), angles.sin()


def rotate(states: Tensor, rotation: Rotation) -> Tensor:
    """Rotate each pair (i, i + D/2) of (B, H, S, D) by its position's angle, in fp32; the dtype is kept."""
    cosine, sine = rotation
    first, second = states.float().chunk(2, dim=-1)  # 2 x (B, H, S, D/2)
    quarter_turn = torch.cat((-second, first), dim=-1)  # (B, H, S, D)
    return (states.float() * cosine + quarter_turn * sine).to(states.dtype)


def rotation_at(rotation: Rotation, positions: Tensor) -> Rotation:
    """The rotation, twice (1 or B, 1, S, D), at positions (B, R): twice (B, 1, R, D)."""
    cosine, sine = (at_positions(part.squeeze(1).expand(len(positions), -1, -1), positions) for part in rotation)
    return cosine.unsqueeze(1), sine.unsqueeze(1)


class ModernAttention(nn.Module):
    """Multi-head self-attention with one fused projection, no biases, rotary positions: (B, S, E)."""

    def __init__(self, config: BertPreConfig) -> None:
        super().__init__()
        self.config = config
        self.is_causal = False  # without this attribute transformers' sdpa attends causally
        self.Wqkv = nn.Linear(config.hidden_size, 3 * config.hidden_size, bias=False)  # query, key and value in one
        self.Wo = nn.Linear(config.hidden_size, config.hidden_size, bias=False)  # output
        self.Wo.init_role = "output"
        self.dropout = Dropout(config.attention_probs_dropout_prob)

    def forward(
        self,
        hidden_states: Tensor,
        mask: Tensor | None,
        rotation: Rotation,
        read_positions: Tensor | None = None,
        **kwargs: object,
    ) -> tuple[Tensor, Tensor | None]:
        query, key, value = self.Wqkv(hidden_states).chunk(3, dim=-1)  # 3 x (B, S, E)
        query = at_positions(query, read_positions)  # (B, S or R, E)
        heads = (-1, self.config.head_dim)
        query, key, value = (part.unflatten(-1, heads).transpose(1, 2) for part in (query, key, value))  # (B, H, S, D)
        asking = rotation if read_positions is None else rotation_at(rotation, read_positions)
        query, key = rotate(query, asking), rotate(key, rotation)
        mixed, weights = run_attention(self, query, key, value, mask, **kwargs)
        return self.dropout(self.Wo(mixed)), weights


class ModernMLP(nn.Module):
    """GeGLU feed-forward network without biases (Shazeer 2020, section 2): (B, S, E)."""

    def __init__(self, config: BertPreConfig) -> None:
        super().__init__()
        self.Wi = nn.Linear(config.hidden_size, 2 * config.intermediate_size, bias=False)  # input and gate in one
        self.activation = ACT2FN[config.hidden_act]
        self.dropout = Dropout(config.hidden_dropout_prob)
        self.Wo = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)  # output
        self.Wo.init_role = "output"

    def forward(self, hidden_states: Tensor) -> Tensor:
        expanded, gate = self.Wi(hidden_states).chunk(2, dim=-1)  # 2 x (B, S, I)
        return self.Wo(self.dropout(self.activation(expanded) * gate))


class ModernLayer(GradientCheckpointingLayer):
    """Pre-LN Transformer layer (Xiong et al. 2020, figure 1b): (B, S, E).

    The first layer has no norm before attention, because the embeddings end with one.
    """

    def __init__(self, config: BertPreConfig, layer_index: int) -> None:
        super().__init__()
        self.attn_norm = nn.Identity() if layer_index == 0 else modern_norm(config)
        self.attn = ModernAttention(config)
        self.mlp_norm = modern_norm(config)
        self.mlp = ModernMLP(config)

    def forward(
        self,
        hidden_states: Tensor,
        mask: Tensor | None,
        rotation: Rotation,
        read_positions: Tensor | None = None,
        **kwargs: object,
    ) -> Tensor:
        mixed, _ = self.attn(self.attn_norm(hidden_states), mask, rotation, read_positions, **kwargs)
        hidden_states = at_positions(hidden_states, read_positions) + mixed
        return hidden_states + self.mlp(self.mlp_norm(hidden_states))


class ModernEncoder(nn.Module):
    """The stack of pre-LN layers and a final norm: (B, S, E)."""

    def __init__(self, config: BertPreConfig) -> None:
        super().__init__()
        self.config = config
        self.layer = nn.ModuleList(ModernLayer(config, index) for index in range(config.num_hidden_layers))
        self.final_norm = modern_norm(config)

    def forward(
        self,
        hidden_states: Tensor,
        mask: Tensor | None,
        position_ids: Tensor,
        read_positions: Tensor | None = None,
        read_rows: dict[str, object] | None = None,
        **kwargs: object,
    ) -> Tensor:
        rotation = rotary_rotation(self.config, position_ids)
        *lower, last = self.layer
        for layer in lower:
            hidden_states = layer(hidden_states, mask, rotation, **kwargs)
        return self.final_norm(last(hidden_states, mask, rotation, read_positions, **(kwargs | (read_rows or {}))))


# ---- both architectures: one vector per sequence ---------------------------------------------------------------------


def mean_pool(hidden_states: Tensor, attention_mask: Tensor | None) -> Tensor:
    """Mean over the tokens that are not padding: (B, S, E) and (B, S) to (B, E); 0 for a row of padding alone.

    Without a mask, or with one of (B, 1, S, S), which does not show the padding, the mean is over all positions.
    """
    if attention_mask is None or attention_mask.ndim != 2:
        return hidden_states.mean(dim=1)
    weights = attention_mask.unsqueeze(-1).to(hidden_states.dtype)  # (B, S) -> (B, S, 1)
    return (hidden_states * weights).sum(dim=1) / weights.sum(dim=1).clamp(min=1)


class Pooler(nn.Module):
    """One vector per sequence, tanh of a projection: (B, S, E) to (B, E).

    "bert" projects [CLS] (google-research/bert, modeling.py). "modern" projects the mean: next sentence prediction then
    reaches every token at once, whereas [CLS] must first learn which tokens to attend to.
    """

    def __init__(self, config: BertPreConfig) -> None:
        super().__init__()
        self.takes_mean = config.architecture == "modern"
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)

    def forward(self, hidden_states: Tensor, attention_mask: Tensor | None) -> Tensor:
        pooled = mean_pool(hidden_states, attention_mask) if self.takes_mean else hidden_states[:, 0]  # (B, E)
        return torch.tanh(self.dense(pooled))


# ---- both architectures: scores of the vocabulary --------------------------------------------------------------------


class PredictionTransform(nn.Module):
    """Projection, activation and norm before the vocabulary: (..., E). "modern" has it without biases.

    Not in the paper, but in its code (google-research/bert, run_pretraining.py, get_masked_lm_output).
    """

    def __init__(self, config: BertPreConfig) -> None:
        super().__init__()
        bias = config.architecture == "bert"
        self.dense = nn.Linear(config.hidden_size, config.hidden_size, bias=bias)
        self.dense.init_role = "output"
        self.activation = ACT2FN[config.hidden_act]
        self.LayerNorm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps, bias=bias)

    def forward(self, hidden_states: Tensor) -> Tensor:
        return self.LayerNorm(self.activation(self.dense(hidden_states)))


class MaskedLMHead(nn.Module):
    """Vocabulary scores, by the transposed token embeddings and a bias: (B, S, E) to (B, S, V).

    Task 1 of Devlin et al. 2018, section 3.1; the tied weights are from the paper's code, as above.
    """

    def __init__(self, config: BertPreConfig) -> None:
        super().__init__()
        self.transform = PredictionTransform(config)
        self.decoder = nn.Linear(config.hidden_size, config.vocab_size)
        self.bias = nn.Parameter(torch.zeros(config.vocab_size))  # tied to decoder.bias; BERT stores it by this name

    def forward(self, hidden_states: Tensor) -> Tensor:
        return self.decoder(self.transform(hidden_states))

    def loss(self, hidden_states: Tensor, labels: Tensor, num_items: Count) -> tuple[Tensor, Tensor]:
        """The loss of scores that are not kept, and how many labels score highest: `vocabulary_loss`."""
        states = self.transform(hidden_states)
        return vocabulary_loss(states, self.decoder.weight, self.decoder.bias, labels, num_items)

"""The BertPre encoder as a `PreTrainedModel`: loading, initial weights, masks.

Shapes: B batch, S sequence, E hidden. This file and its siblings need only torch, transformers and each other, because
saving a model with custom code copies these alone.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers import initialization as init
from transformers.masking_utils import create_bidirectional_mask
from transformers.modeling_outputs import BaseModelOutputWithPooling
from transformers.processing_utils import Unpack
from transformers.utils import TransformersKwargs
from transformers.utils.generic import is_flash_attention_requested, merge_with_config_defaults
from transformers.utils.output_capturing import capture_outputs

from .configuration_bertpre import BertPreConfig
from .layers_bertpre import (
    BertEmbeddings,
    BertEncoder,
    BertLayer,
    BertSelfAttention,
    MaskedLMHead,
    ModernAttention,
    ModernEmbeddings,
    ModernEncoder,
    ModernLayer,
    Pooler,
)


class BertPrePreTrainedModel(PreTrainedModel):
    """What all BertPre models share: loading, attention kernels and the initial weights.

    | standard deviation of      | "bert", normal    | "modern", normal cut at 2 std                   |
    |----------------------------|-------------------|-------------------------------------------------|
    | matrices not below         | initializer_range | initializer_range                               |
    | `Wo`, `transform.dense`    | initializer_range | initializer_range / sqrt(2 * num_hidden_layers) |
    | `classifier`, `qa_outputs` | initializer_range | 1 / sqrt(hidden_size)                           |

    Biases start at 0, norms at 1. Sources: stock BERT; ModernBERT, which follows Megatron (Shoeybi et al. 2019).
    """

    config_class = BertPreConfig
    base_model_prefix = "bert"
    supports_gradient_checkpointing = True
    accepts_loss_kwargs = True  # Trainer passes its count of labels and leaves the scale of the loss to the model
    _input_embed_layer = "word_embeddings"
    _supports_sdpa = True
    _supports_flash_attn = True
    _supports_flex_attn = True
    _no_split_modules = ["BertEmbeddings", "BertLayer", "ModernEmbeddings", "ModernLayer"]
    _can_record_outputs = {
        "hidden_states": [BertLayer, ModernLayer],
        "attentions": [BertSelfAttention, ModernAttention],
    }

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        if isinstance(module, MaskedLMHead):
            init.zeros_(module.bias)
        if isinstance(module, ModernEmbeddings):
            init.zeros_(module.second_segment)
        if self.config.architecture == "modern" and isinstance(module, nn.Linear | nn.Embedding):
            # The layer carries its exception itself: for models outside transformers this method never sees modules
            # that hold no parameter directly, so it cannot be told from its parent.
            std = getattr(module, "initial_std", self.config.initializer_range)
            init.trunc_normal_(module.weight, std=std, a=-2 * std, b=2 * std)


class BertPreModel(BertPrePreTrainedModel):
    """The encoder of either architecture, with a pooler unless told otherwise."""

    def __init__(self, config: BertPreConfig, add_pooling_layer: bool = True) -> None:
        super().__init__(config)
        modern = config.architecture == "modern"
        self.embeddings = ModernEmbeddings(config) if modern else BertEmbeddings(config)
        self.encoder = ModernEncoder(config) if modern else BertEncoder(config)
        self.pooler = Pooler(config) if add_pooling_layer else None
        self.post_init()

    @merge_with_config_defaults
    @capture_outputs
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        **kwargs: Unpack[TransformersKwargs],
    ) -> BaseModelOutputWithPooling:
        """Encode ids (B, S), or embeddings (B, S, E), to hidden states (B, S, E) and a summary (B, E).

        `attention_mask` is (B, S), 1 for tokens and 0 for padding; or (B, 1, S, S), used as it is; or None, which is
        faster, when no row is padded. Flash attention leaves padding out of every layer; what stands there is 0 then,
        unless `output_hidden_states` asks for all layers. Rows packed by transformers' `cu_seq_lens_q` and its siblings
        go to that kernel as they are. Raises ValueError unless exactly one of ids and embeddings is given.
        """
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError("give exactly one of input_ids and inputs_embeds")
        if inputs_embeds is None:
            inputs_embeds = self.embeddings.word_embeddings(input_ids)
        if position_ids is None:
            position_ids = torch.arange(inputs_embeds.shape[1], device=inputs_embeds.device).unsqueeze(0)  # (1, S)
        hidden_states = self.embeddings(inputs_embeds, token_type_ids, position_ids)
        is_padding_mask = attention_mask is not None and attention_mask.ndim == 2
        if is_padding_mask and is_flash_attention_requested(self.config) and not kwargs.get("output_hidden_states"):
            hidden_states = self._encode_unpadded(hidden_states, attention_mask, position_ids, **kwargs)
        else:
            mask = self._kernel_mask(attention_mask, hidden_states)
            hidden_states = self.encoder(hidden_states, mask, position_ids, **kwargs)
        pooled = self.pooler(hidden_states, attention_mask) if self.pooler is not None else None
        return BaseModelOutputWithPooling(last_hidden_state=hidden_states, pooler_output=pooled)

    def _encode_unpadded(
        self, hidden_states: Tensor, attention_mask: Tensor, position_ids: Tensor, **kwargs: object
    ) -> Tensor:
        # The N tokens of all rows become one row, in which a kernel for variable lengths keeps them apart.
        is_token = attention_mask.bool()  # (B, S)
        lengths = is_token.sum(dim=1, dtype=torch.int32)  # (B,)
        bounds, longest = F.pad(lengths.cumsum(0, dtype=torch.int32), (1, 0)), int(lengths.max())  # (B + 1,)
        rows = {"cu_seq_lens_q": bounds, "cu_seq_lens_k": bounds, "max_length_q": longest, "max_length_k": longest}
        positions = position_ids.expand_as(is_token)[is_token].unsqueeze(0)  # (1, N)
        tokens = self.encoder(hidden_states[is_token].unsqueeze(0), None, positions, **rows, **kwargs)  # (1, N, E)
        padded = tokens.new_zeros(hidden_states.shape)  # (B, S, E)
        padded[is_token] = tokens[0]
        return padded

    def _kernel_mask(self, attention_mask: Tensor | None, hidden_states: Tensor) -> Tensor | None:
        # For a padding mask transformers' helper asks at every step whether anything is padded, and the CPU waits for
        # the GPU's answer. It passes a 4-D mask on untouched, so build that here for the kernels that take bool.
        is_padding_mask = attention_mask is not None and attention_mask.ndim == 2
        if is_padding_mask and self.config._attn_implementation in ("eager", "sdpa"):
            attention_mask = attention_mask[:, None, None, :].bool()  # (B, S) -> (B, 1, 1, S)
        return create_bidirectional_mask(self.config, hidden_states, attention_mask)

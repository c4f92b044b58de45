"""Text models of transformers, unmodified: tiny configurations, random weights, dropout as the library has it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tests.zoo.case import ids
from tests.zoo.offline import offline

with offline():
    from transformers import (
        BertConfig,
        BertForSequenceClassification,
        DistilBertConfig,
        DistilBertForMaskedLM,
        GPT2Config,
        GPT2LMHeadModel,
        GPTNeoXConfig,
        GPTNeoXForCausalLM,
        LlamaConfig,
        LlamaForCausalLM,
        MixtralConfig,
        MixtralForCausalLM,
        OPTConfig,
        OPTForCausalLM,
        T5Config,
        T5ForConditionalGeneration,
    )

V, D, H = 64, 16, 2  # vocabulary, width, heads


def tokens_to_tokens(b: int, t: int) -> dict[str, Tensor]:
    """The last position of every row is padding."""
    mask = torch.cat([torch.ones(b, t - 1, dtype=torch.long), torch.zeros(b, 1, dtype=torch.long)], 1)
    return {"input_ids": ids(b, t, V), "attention_mask": mask, "labels": ids(b, t, V)}


def tokens_to_class(b: int, t: int) -> dict[str, Tensor]:
    return {**tokens_to_tokens(b, t), "labels": torch.randint(2, (b,))}


def source_to_target(b: int, t: int) -> dict[str, Tensor]:
    return {"input_ids": ids(b, t, V), "labels": ids(b, t + 1, V)}


def gpt2() -> Any:
    config = GPT2Config(
        vocab_size=V,
        n_positions=64,
        n_embd=D,
        n_layer=3,
        n_head=H,
        use_cache=False,
        bos_token_id=1,
        eos_token_id=2,
    )
    return GPT2LMHeadModel(config)


def llama() -> Any:
    config = LlamaConfig(
        vocab_size=V,
        hidden_size=D,
        intermediate_size=2 * D,
        num_hidden_layers=3,
        num_attention_heads=H,
        num_key_value_heads=1,
        max_position_embeddings=64,
        use_cache=False,
    )
    return LlamaForCausalLM(config)


def bert() -> Any:
    config = BertConfig(
        vocab_size=V,
        hidden_size=D,
        intermediate_size=2 * D,
        num_hidden_layers=3,
        num_attention_heads=H,
        max_position_embeddings=64,
    )
    return BertForSequenceClassification(config)


def t5() -> Any:
    config = T5Config(
        vocab_size=V,
        d_model=D,
        d_kv=8,
        d_ff=2 * D,
        num_layers=2,
        num_heads=H,
        use_cache=False,
        decoder_start_token_id=0,
        pad_token_id=0,
    )
    return T5ForConditionalGeneration(config)


def distilbert() -> Any:
    config = DistilBertConfig(vocab_size=V, dim=D, hidden_dim=2 * D, n_layers=3, n_heads=H, max_position_embeddings=64)
    return DistilBertForMaskedLM(config)


def opt() -> Any:
    config = OPTConfig(
        vocab_size=V,
        hidden_size=D,
        ffn_dim=2 * D,
        num_hidden_layers=3,
        num_attention_heads=H,
        max_position_embeddings=64,
        word_embed_proj_dim=D,
        use_cache=False,
    )
    return OPTForCausalLM(config)


def gpt_neox() -> Any:
    config = GPTNeoXConfig(
        vocab_size=V,
        hidden_size=D,
        intermediate_size=2 * D,
        num_hidden_layers=3,
        num_attention_heads=H,
        max_position_embeddings=64,
        use_cache=False,
    )
    return GPTNeoXForCausalLM(config)


def mixtral() -> Any:
    config = MixtralConfig(
        vocab_size=V,
        hidden_size=D,
        intermediate_size=2 * D,
        num_hidden_layers=3,
        num_attention_heads=H,
        num_key_value_heads=1,
        num_local_experts=4,
        num_experts_per_tok=2,
        max_position_embeddings=64,
        use_cache=False,
    )
    return MixtralForCausalLM(config)

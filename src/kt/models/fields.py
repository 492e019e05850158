"""The fields of a config.json; those that do not matter are listed here."""

from __future__ import annotations

from typing import Final

from kt.weights import fields

# Fields that do not change what a forward pass computes: bookkeeping, training, generation
# defaults, ids.
INERT: Final = frozenset(
    {
        "_attn_implementation_autoset",
        "_name_or_path",
        "architectures",
        "attention_dropout",
        "auto_map",
        "bad_words_ids",
        "bos_token_id",
        "chunk_size_feed_forward",
        "dtype",
        "eos_token_id",
        "finetuning_task",
        "id2label",
        "initializer_range",
        "is_encoder_decoder",
        "is_llama_config",
        "label2id",
        "max_length",
        "model_type",
        "output_attentions",
        "output_hidden_states",
        "output_router_logits",
        "pad_token_id",
        "pretraining_tp",
        "problem_type",
        "return_dict",
        "router_aux_loss_coef",
        "sep_token_id",
        "task_specific_params",
        "tokenizer_class",
        "torch_dtype",
        "transformers.js_config",
        "transformers_version",
        "unsloth_fixed",
        "unsloth_version",
        "use_cache",
        "use_return_dict",
    }
)


class Fields(fields.Fields):
    """The fields of a config.json, or of a part of it called `name`."""

    inert = INERT

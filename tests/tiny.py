"""Tiny random checkpoints for tests, in every format, with a tiny tokenizer beside them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import torch
import transformers
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers, trainers

VOCAB = 320
SPECIAL = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
CHATML = (
    "{%- for message in messages %}"
    "{{- '<|im_start|>' + message.role + '\n' + message.content + '<|im_end|>\n' }}"
    "{%- endfor %}"
    "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}"
)
SIZES: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 512,
    "bos_token_id": 0,
    "eos_token_id": 2,
    "initializer_range": 0.1,  # large enough that logits differ clearly
}
EXPERTS: dict[str, Any] = {
    "num_experts": 8,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 48,
    "norm_topk_prob": True,
}


def tiny_qwen3_moe(
    folder: Path,
    *,
    seed: int = 0,
    dtype: str = "bfloat16",
    shard_bytes: int | None = None,
    **config: Any,
) -> Path:
    """A random Qwen3-MoE checkpoint as save_pretrained writes it; config overrides fields. Returns
    folder.
    """
    made = transformers.Qwen3MoeConfig(**{**SIZES, **EXPERTS, **config})
    return _save(transformers.Qwen3MoeForCausalLM, made, folder, seed, dtype, shard_bytes)


def tiny_llama(
    folder: Path,
    *,
    seed: int = 0,
    dtype: str = "bfloat16",
    shard_bytes: int | None = None,
    **config: Any,
) -> Path:
    """A random Llama checkpoint as save_pretrained writes it; config overrides fields. Returns
    folder.
    """
    made = transformers.LlamaConfig(**{**SIZES, **config})
    return _save(transformers.LlamaForCausalLM, made, folder, seed, dtype, shard_bytes)


def _save(
    model_class: Any, config: Any, folder: Path, seed: int, dtype: str, shard_bytes: int | None
) -> Path:
    torch.manual_seed(seed)
    model = model_class(config)
    with torch.no_grad():  # norms start at one and biases at zero, which would hide mistakes
        for name, parameter in model.named_parameters():
            if "norm" in name or name.endswith("bias"):
                parameter.add_(torch.randn_like(parameter) * 0.1)
    model = model.to(getattr(torch, dtype))
    size = {} if shard_bytes is None else {"max_shard_size": shard_bytes}
    model.save_pretrained(folder, **size)
    tiny_tokenizer(folder)
    return folder


def tiny_tokenizer(folder: Path, *, template: str | None = CHATML) -> Path:
    """A byte-level BPE tokenizer of VOCAB ids with a ChatML template, as Hugging Face files.
    Returns folder.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=VOCAB,
        special_tokens=list(SPECIAL),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    words = (
        "the quick brown fox jumps over the lazy dog and then the other dog user assistant system "
    )
    tokenizer.train_from_iterator([words * 20], trainer)
    tokenizer.add_special_tokens([AddedToken(token, special=True) for token in SPECIAL])
    folder.mkdir(parents=True, exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": SPECIAL[0],
        "eos_token": SPECIAL[2],
        "pad_token": SPECIAL[0],
        "clean_up_tokenization_spaces": False,
        "model_max_length": 512,
    }
    if template is not None:
        settings["chat_template"] = template
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


def random_blocks(encoding: str, n: int, k: int, seed: int = 0) -> np.ndarray:
    """Valid random rows [n, bytes] of `encoding`: scales are small finite numbers, codes are any
    bits.
    """
    rng = np.random.default_rng(seed)
    kind = gguf.GGMLQuantizationType[encoding]
    elements, size = gguf.GGML_QUANT_SIZES[kind]
    blocks = rng.integers(0, 256, (n * (k // elements), size), dtype=np.uint8)
    for at in _HALVES[encoding]:
        scales = rng.uniform(0.001, 0.02, len(blocks)) * _SIZES.get(encoding, 1)
        scales = scales.astype("<f2")
        blocks[:, at : at + 2] = scales.view(np.uint8).reshape(-1, 2)
    if encoding == "IQ1_M":  # the float16 number is the highest nibbles of four words
        blocks[:, [49, 51, 53, 55]] &= 15
        for at, bits in ((53, 0x80), (55, 0x10)):  # 2^-9
            blocks[:, at] |= bits
    if encoding == "MXFP4":  # a power of two
        blocks[:, 0] = rng.integers(118, 122, len(blocks))
    return blocks.reshape(n, -1)


# The scales of types whose codes and steps are large, so that values are about 0.02.
_SIZES = {
    "IQ1_S": 0.2,
    "IQ2_XXS": 0.03,
    "IQ2_XS": 0.03,
    "IQ2_S": 0.03,
    "IQ3_XXS": 0.012,
    "IQ3_S": 0.012,
}

# Where a block holds float16 numbers.
_HALVES = {
    "Q4_0": (0,),
    "Q4_1": (0, 2),
    "Q5_0": (0,),
    "Q5_1": (0, 2),
    "Q8_0": (0,),
    "Q4_K": (0, 2),
    "Q5_K": (0, 2),
    "Q6_K": (208,),
    "Q2_K": (80, 82),
    "Q3_K": (108,),
    "IQ4_NL": (0,),
    "IQ4_XS": (0,),
    "MXFP4": (),
    "IQ1_S": (0,),
    "IQ1_M": (),
    "IQ2_XXS": (0,),
    "IQ2_XS": (0,),
    "IQ2_S": (0,),
    "IQ3_XXS": (0,),
    "IQ3_S": (0,),
}


def encoded(encoding: str, values: np.ndarray, seed: int = 0) -> np.ndarray:
    """Rows of `values` in `encoding` as GGUFWriter takes them; random blocks where gguf cannot
    quantize.
    """
    kind = gguf.GGMLQuantizationType[encoding]
    try:
        return np.asarray(gguf.quantize(values.astype(np.float32), kind))
    except (NotImplementedError, gguf.quants.QuantError):
        return random_blocks(encoding, values.shape[0], values.shape[1], seed)


def tiny_gguf(
    path: Path,
    *,
    encoding: str = "Q4_0",
    seed: int = 0,
    tied: bool = True,
    plain: bool = False,
    **config: Any,
) -> Path:
    """A random llama GGUF whose matrices are in `encoding`, or (plain) float32 of the same values.
    Returns path.

    Rows must be whole blocks, so hidden_size is 64, and 256 for the K types; four heads share it.
    """
    width = _width(encoding)
    heads = {"head_dim": width // 4, "intermediate_size": 2 * width, "hidden_size": width}
    sizes = {**SIZES, **heads, **config}
    writer = gguf.GGUFWriter(path, "llama")
    write_llama_fields(writer, sizes)
    write_tokenizer(writer)
    tensors = _RandomTensors(writer, encoding, seed, plain=plain)
    tensors.frame(sizes, tied=tied)
    for layer in range(sizes["num_hidden_layers"]):
        tensors.attention(layer, sizes)
        for part in ("gate", "up"):
            tensors.matrix(f"blk.{layer}.ffn_{part}.weight", sizes["intermediate_size"], width)
        tensors.matrix(f"blk.{layer}.ffn_down.weight", width, sizes["intermediate_size"])
    return finish(writer, path)


def tiny_qwen3_moe_gguf(
    path: Path, *, encoding: str = "Q8_0", seed: int = 0, plain: bool = False, **config: Any
) -> Path:
    """A random qwen3moe GGUF, experts stacked as converters write them, in `encoding` or (plain)
    float32 of the same values. Returns path.
    """
    width = _width(encoding)
    fitting = {"head_dim": width // 4, "hidden_size": width, "moe_intermediate_size": width}
    sizes = {**SIZES, **EXPERTS, **fitting, **config}
    writer = gguf.GGUFWriter(path, "qwen3moe")
    write_llama_fields(writer, sizes)
    writer.add_expert_count(sizes["num_experts"])
    writer.add_expert_used_count(sizes["num_experts_per_tok"])
    writer.add_expert_feed_forward_length(sizes["moe_intermediate_size"])
    write_tokenizer(writer)
    tensors = _RandomTensors(writer, encoding, seed, plain=plain)
    tensors.frame(sizes, tied=False)
    for layer in range(sizes["num_hidden_layers"]):
        tensors.attention(layer, sizes)
        tensors.vector(f"blk.{layer}.attn_q_norm.weight", sizes["head_dim"])
        tensors.vector(f"blk.{layer}.attn_k_norm.weight", sizes["head_dim"])
        tensors.experts(layer, sizes)
    return finish(writer, path)


def _width(encoding: str) -> int:
    block = gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[encoding]][0]
    return 256 if block == 256 else 64


class _RandomTensors:
    """Adds random tensors to a file, matrices in one encoding."""

    def __init__(
        self, writer: gguf.GGUFWriter, encoding: str, seed: int, *, plain: bool = False
    ) -> None:
        self._writer, self._encoding, self._plain = writer, encoding, plain
        self._rng = np.random.default_rng(seed)

    def frame(self, sizes: dict[str, Any], *, tied: bool) -> None:
        self.matrix("token_embd.weight", sizes["vocab_size"], sizes["hidden_size"])
        self.vector("output_norm.weight", sizes["hidden_size"])
        if not tied:
            self.matrix("output.weight", sizes["vocab_size"], sizes["hidden_size"])

    def attention(self, layer: int, sizes: dict[str, Any]) -> None:
        hidden, wide = sizes["hidden_size"], sizes["num_attention_heads"] * sizes["head_dim"]
        narrow = sizes["num_key_value_heads"] * sizes["head_dim"]
        self.vector(f"blk.{layer}.attn_norm.weight", hidden)
        self.matrix(f"blk.{layer}.attn_q.weight", wide, hidden)
        self.matrix(f"blk.{layer}.attn_k.weight", narrow, hidden)
        self.matrix(f"blk.{layer}.attn_v.weight", narrow, hidden)
        self.matrix(f"blk.{layer}.attn_output.weight", hidden, wide)
        self.vector(f"blk.{layer}.ffn_norm.weight", hidden)

    def experts(self, layer: int, sizes: dict[str, Any]) -> None:
        count, hidden = sizes["num_experts"], sizes["hidden_size"]
        inner = sizes["moe_intermediate_size"]
        router = self._rng.normal(0, 0.3, (count, hidden)).astype(np.float32)
        self._writer.add_tensor(f"blk.{layer}.ffn_gate_inp.weight", router)
        self.matrix(f"blk.{layer}.ffn_gate_exps.weight", inner, hidden, count)
        self.matrix(f"blk.{layer}.ffn_up_exps.weight", inner, hidden, count)
        self.matrix(f"blk.{layer}.ffn_down_exps.weight", hidden, inner, count)

    def matrix(self, name: str, n: int, k: int, stack: int = 0) -> None:
        rows = n * (stack or 1)
        values = self._rng.normal(0, 0.1, (rows, k)).astype(np.float32)
        raw = encoded(self._encoding, values, int(self._rng.integers(1 << 30)))
        kind = gguf.GGMLQuantizationType[self._encoding]
        if self._plain:
            raw, kind = gguf.dequantize(raw, kind), gguf.GGMLQuantizationType.F32
        if stack:
            raw = raw.reshape(stack, n, -1)
        self._writer.add_tensor(name, raw, raw_dtype=kind)

    def vector(self, name: str, n: int) -> None:
        self._writer.add_tensor(name, self._rng.normal(1, 0.1, n).astype(np.float32))


def finish(writer: gguf.GGUFWriter, path: Path) -> Path:
    """Writes the file. Returns path."""
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def write_llama_fields(
    writer: gguf.GGUFWriter, sizes: dict[str, Any], *, rope: bool = True
) -> None:
    """The metadata of a decoder of `sizes`, under the writer's architecture."""
    writer.add_block_count(sizes["num_hidden_layers"])
    writer.add_context_length(sizes["max_position_embeddings"])
    writer.add_embedding_length(sizes["hidden_size"])
    writer.add_feed_forward_length(sizes["intermediate_size"])
    writer.add_head_count(sizes["num_attention_heads"])
    writer.add_head_count_kv(sizes["num_key_value_heads"])
    writer.add_key_length(sizes["head_dim"])
    writer.add_value_length(sizes["head_dim"])
    if rope:
        writer.add_rope_dimension_count(sizes["head_dim"])
        writer.add_rope_freq_base(10000.0)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_vocab_size(sizes["vocab_size"])


def write_tokenizer(writer: gguf.GGUFWriter, *, template: str | None = CHATML) -> None:
    """The tiny tokenizer's vocabulary, as llama.cpp's converter writes it."""
    made = json.loads(_tokenizer_json())
    vocab = sorted(made["model"]["vocab"], key=made["model"]["vocab"].get)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(vocab)
    writer.add_token_types([3 if token in SPECIAL else 1 for token in vocab])
    writer.add_token_merges([" ".join(pair) for pair in made["model"]["merges"]])
    writer.add_bos_token_id(0)
    writer.add_eos_token_id(2)
    writer.add_add_bos_token(False)
    if template is not None:
        writer.add_chat_template(template)


def _tokenizer_json() -> str:
    import tempfile

    with tempfile.TemporaryDirectory() as folder:
        return (tiny_tokenizer(Path(folder)) / "tokenizer.json").read_text()

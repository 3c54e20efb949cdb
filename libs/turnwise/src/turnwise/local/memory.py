"""What training takes on the GPU, part by part, before it is tried.

Counted are the tensors that autograd keeps for the backward pass of the Llama family as
transformers computes it, and what the optimiser holds; b is the bytes of a weight, P the weights, T
those that are trained, n the tokens of a row (`--max-tokens-per-gpu`).

| part        | bytes                                                                           |
|-------------|---------------------------------------------------------------------------------|
| weights     | b P                                                                             |
| reference   | b P with a KL loss, none with adapters                                           |
| masters     | 4 T in bfloat16, none offloaded                                                 |
| gradients   | 4 T                                                                             |
| optimizer   | 8 T, 2.03 T in 8 bits, none offloaded                                           |
| activations | n * layers * (a layer's), or with recomputation n * (layers * b H + a layer's)  |
| logits      | of a chunk and of the gradient of the head                                      |
| engine      | the embedded engine's copy of the weights and its cache                         |

A layer keeps for each token 2 (4 + 2b) H for its norms, b (2Q + 2K) D + 4 Q for attention, 4 b I
for the MLP and (4 + b) (Q + K) D for query-key norms. A row is taken as full and without a common
start. What CUDA itself takes, some 500 MB, and the allocator's gaps are not in it, as they are not
in `torch.cuda.max_memory_allocated`. Imports no torch.

Shapes: H hidden, I the MLP's, Q and K heads, D head size, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from turnwise.config import ConfigError
from turnwise.local.options import TrainOptions
from turnwise.preflight import Line, fail, ok

LORA_INPUTS = 7
"""Adapted layers of a block, `turnwise.local.adapters.TARGETS`."""
CHUNK_ELEMENTS = 1 << 26
"""Of `turnwise.local.head`, which needs torch."""
BYTES_8BIT = 2 * (1 + 4 / 256)
"""Two moments of a byte, with a float32 scale for each 256."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelShape:
    """Sizes of a model of the Llama family."""

    layers: int
    hidden: int
    intermediate: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    tied: bool
    qk_norm: bool
    qkv_bias: bool

    @classmethod
    def of(cls, config: Any) -> ModelShape:
        """Reads the sizes.

        Args:
            config: `policy_files.ModelConfig` or a transformers configuration.

        Raises:
            ConfigError: a size is missing.
        """
        heads = _size(config, "num_attention_heads")
        hidden = _size(config, "hidden_size")
        return cls(
            layers=_size(config, "num_hidden_layers"),
            hidden=hidden,
            intermediate=_size(config, "intermediate_size"),
            heads=heads,
            kv_heads=getattr(config, "num_key_value_heads", None) or heads,
            head_dim=getattr(config, "head_dim", None) or hidden // heads,
            vocab=_size(config, "vocab_size"),
            tied=bool(config.tie_word_embeddings),
            qk_norm=config.model_type == "qwen3",
            qkv_bias=config.model_type == "qwen2",
        )

    @property
    def head(self) -> int:
        """Weights of the language-model head."""
        return self.vocab * self.hidden

    @property
    def queries(self) -> int:
        """Width of all query heads."""
        return self.heads * self.head_dim

    @property
    def keys(self) -> int:
        """Width of all key heads."""
        return self.kv_heads * self.head_dim

    @property
    def parameters(self) -> int:
        """Weights in all."""
        layer = self.hidden * (2 * self.queries + 2 * self.keys + 3 * self.intermediate)
        layer += 2 * self.hidden
        layer += 2 * self.head_dim if self.qk_norm else 0
        layer += self.queries + 2 * self.keys if self.qkv_bias else 0
        return self.layers * layer + self.hidden + self.head * (1 if self.tied else 2)

    def adapters(self, rank: int) -> int:
        """Weights of adapters of `rank`."""
        ends = 2 * (self.hidden + self.queries) + 2 * (self.hidden + self.keys)
        ends += 3 * (self.hidden + self.intermediate)
        return self.layers * rank * ends


@dataclass(frozen=True, slots=True)
class MemoryEstimate:
    """Bytes by part, in the order of the module's table; parts that take nothing are left out."""

    parts: Mapping[str, int]

    @property
    def total(self) -> int:
        """Bytes of all parts."""
        return sum(self.parts.values())

    def __str__(self) -> str:
        listed = ", ".join(f"{name} {_gb(size)}" for name, size in self.parts.items())
        return f"{_gb(self.total)} GB ({listed})"


def predict_memory(
    shape: ModelShape, options: TrainOptions, *, embedded_engine: bool = True
) -> MemoryEstimate:
    """The peak of a training step.

    Args:
        embedded_engine: Whether rollouts are sampled in this process.
    """
    wide = options.weight_dtype() == "float32"
    b = 4 if wide else 2
    trained = shape.adapters(options.lora_rank) if options.lora_rank else shape.parameters
    stored = shape.parameters + (trained if options.lora_rank else 0)
    offload = options.optimizer_cpu_offload
    moments = BYTES_8BIT if options.optimizer == "adam8bit" else 8
    parts = {
        "weights": b * stored,
        "reference": b * shape.parameters * (options.use_kl_loss and not options.lora_rank),
        "masters": 0 if wide or offload else 4 * trained,
        "gradients": 4 * trained,
        "optimizer": 0 if offload else round(moments * trained),
        "activations": _activations(shape, options, b),
        "logits": _logits(shape, options, b),
        "engine": _engine(shape, options, b) if embedded_engine else 0,
    }
    return MemoryEstimate({name: size for name, size in parts.items() if size})


def memory_line(estimate: MemoryEstimate, free_bytes: int) -> Line:
    """The line of the preflight: whether it fits into what is free."""
    if estimate.total <= free_bytes:
        return ok("memory", f"{estimate}; {_gb(free_bytes)} GB are free")
    return fail(
        "memory",
        f"{estimate}, but {_gb(free_bytes)} GB are free",
        "lower --max-tokens-per-gpu, or give --recompute-granularity full,"
        " --optimizer-cpu-offload, --optimizer adam8bit or --lora-rank",
    )


def layer_bytes(shape: ModelShape, b: int, lora_rank: int = 0) -> int:
    """What a layer keeps of a token for its backward pass."""
    # The weight of a norm that is not trained needs no input.
    norms = 2 * (4 + (1 if lora_rank else 2) * b) * shape.hidden
    attention = 2 * b * (shape.queries + shape.keys) + 4 * shape.heads
    if shape.qk_norm:
        attention += (4 + (0 if lora_rank else b)) * (shape.queries + shape.keys)
    return norms + attention + 4 * b * shape.intermediate + LORA_INPUTS * b * lora_rank


def _activations(shape: ModelShape, options: TrainOptions, b: int) -> int:
    layer = layer_bytes(shape, b, options.lora_rank)
    ends = (4 + 3 * b) * shape.hidden
    if options.recompute_granularity is None:
        return options.max_tokens_per_gpu * (shape.layers * layer + ends)
    # The gradients of the layer under way lie beside what it keeps.
    under_way = layer + 3 * b * shape.intermediate + 2 * b * shape.hidden
    kept = shape.layers * b * shape.hidden
    return options.max_tokens_per_gpu * (kept + under_way + ends)


def _logits(shape: ModelShape, options: TrainOptions, b: int) -> int:
    chunk = options.log_probs_chunk_size or max(1, CHUNK_ELEMENTS // shape.vocab)
    rows = min(chunk, options.max_tokens_per_gpu)
    logits = rows * shape.vocab
    # Forward: logits and chances in float32. Backward: one of them, beside the head's gradient.
    if options.lora_rank:
        return 8 * logits
    summed = 4 * shape.head if rows < options.max_tokens_per_gpu else 0
    return max(8 * logits, 6 * logits + summed, 2 * logits + summed + b * shape.head)


def _engine(shape: ModelShape, options: TrainOptions, b: int) -> int:
    # The embedded engine holds a tied head twice.
    weights = b * (shape.parameters + (shape.head if shape.tied else 0))
    cached = options.engine_rows * options.rollout_max_context_len
    cache = cached * shape.layers * 2 * shape.keys * b
    # Logits of a step, and the tensor that replayed steps have in common.
    return weights + cache + 8 * options.engine_rows * shape.vocab


def _size(config: Any, name: str) -> int:
    found = getattr(config, name, None)
    if type(found) is not int:
        raise ConfigError(f"config.json: {name} is missing, so memory can't be predicted")
    return found


def _gb(size: int) -> str:
    return f"{size / 1e9:.2f}"

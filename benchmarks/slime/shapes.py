"""Checkpoints with the shape of a published model and random weights: for memory and speed alone.

The tokenizer is the shipped policy's with names for the ids that it lacks, so that whatever such
weights sample has a text.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

# Figures of the published config.json files.
COMMON: dict[str, Any] = {
    "model_type": "qwen3",
    "architectures": ["Qwen3ForCausalLM"],
    "vocab_size": 151936,
    "head_dim": 128,
    "num_key_value_heads": 8,
    "rms_norm_eps": 1e-6,
    "max_position_embeddings": 40960,
    "tie_word_embeddings": True,
    "attention_bias": False,
    "hidden_act": "silu",
}
SHAPES: dict[str, dict[str, Any]] = {
    "smollm2-135M": {
        **COMMON,
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "vocab_size": 49152,
        "head_dim": 64,
        "num_key_value_heads": 3,
        "rms_norm_eps": 1e-5,
        "max_position_embeddings": 8192,
        "num_hidden_layers": 30,
        "hidden_size": 576,
        "intermediate_size": 1536,
        "num_attention_heads": 9,
        "rope_theta": 100000,
    },
    "qwen3-0.6B": {
        **COMMON,
        "num_hidden_layers": 28,
        "hidden_size": 1024,
        "intermediate_size": 3072,
        "num_attention_heads": 16,
        "rope_theta": 1000000,
    },
    "qwen3-4B-Instruct-2507": {
        **COMMON,
        "num_hidden_layers": 36,
        "hidden_size": 2560,
        "intermediate_size": 9728,
        "num_attention_heads": 32,
        "rope_theta": 5000000,
        "max_position_embeddings": 262144,
    },
}


def make_shape(name: str, policy: Path, folder: Path, device: str = "cuda") -> None:
    """Writes the checkpoint, whole or not at all.

    Args:
        name: A key of `SHAPES`, slime's name of the model where slime has one.
        policy: The shipped policy's folder.
        folder: What is written; left alone if it is there.
        device: Where the weights are drawn.
    """
    if folder.exists():
        return
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    part = folder.with_name(f"{folder.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    for path in policy.iterdir():
        if path.name.startswith("tokenizer") or path.name == "chat_template.jinja":
            shutil.copy(path, part / path.name)
    widen(part / "tokenizer.json", SHAPES[name]["vocab_size"])
    (part / "config.json").write_text(json.dumps(SHAPES[name]))
    config = AutoConfig.from_pretrained(str(part))
    torch.manual_seed(1)
    with torch.device(device):
        model: Any = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)  # type: ignore[no-untyped-call]
    model.save_pretrained(str(part))
    (part / "config.json").write_text(json.dumps({**SHAPES[name], "torch_dtype": "bfloat16"}))
    part.replace(folder)


def widen(tokenizer: Path, size: int) -> None:
    """Gives every id below `size` a text."""
    content = json.loads(tokenizer.read_text(encoding="utf-8"))
    vocabulary = content["model"]["vocab"]
    known = set(vocabulary.values()) | {one["id"] for one in content["added_tokens"]}
    vocabulary |= {f"w{place}": place for place in range(size) if place not in known}
    tokenizer.write_text(json.dumps(content, ensure_ascii=False), encoding="utf-8")

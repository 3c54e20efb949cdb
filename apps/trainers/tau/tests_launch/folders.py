"""Small stand-ins for what a node has: a policy's folder, a Megatron checkpoint, converters."""

import json
import struct
from pathlib import Path

from apps.trainers.tau.tokenizer import train_tokenizer

# qwen2.5-0.5B's figures as its config.json has them.
CONFIG = {
    "model_type": "qwen2",
    "architectures": ["Qwen2ForCausalLM"],
    "num_hidden_layers": 24,
    "hidden_size": 896,
    "intermediate_size": 4864,
    "num_attention_heads": 14,
    "num_key_value_heads": 2,
    "vocab_size": 151936,
    "rms_norm_eps": 1e-6,
    "rope_theta": 1000000.0,
    "tie_word_embeddings": True,
}
SHAPES = {"model.embed_tokens.weight": (6, 4), "model.norm.weight": (4,)}


def write_weights(path: Path, shapes: dict[str, tuple[int, ...]] = SHAPES) -> None:
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, shape in shapes.items():
        size = 2
        for length in shape:
            size *= length
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + bytes(offset))


def write_policy(folder: Path, *, tokenizer: bool = True) -> Path:
    """A Hugging Face folder with two small tensors and, if asked, a tokenizer."""
    folder.mkdir(parents=True)
    if tokenizer:
        train_tokenizer(["You are a helpful agent."], vocab_size=1400).save_pretrained(str(folder))
    else:
        (folder / "tokenizer.json").write_text("{}")
        (folder / "tokenizer_config.json").write_text("{}")
    (folder / "config.json").write_text(json.dumps(CONFIG))
    write_weights(folder / "model.safetensors")
    return folder


def write_torch_dist(folder: Path, step: int | None = None) -> Path:
    """A Megatron checkpoint: a converted release, or a step of training."""
    name = "release" if step is None else f"iter_{step:07d}"
    place = folder / name
    place.mkdir(parents=True)
    for file in ("common.pt", ".metadata", "__0_0.distcp"):
        (place / file).write_bytes(bytes(400))
    (folder / "latest_checkpointed_iteration.txt").write_text(
        "release" if step is None else str(step)
    )
    return folder

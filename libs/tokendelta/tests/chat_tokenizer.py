"""A small tokenizer with any chat template: byte-level BPE, special tokens read off the template.

It has the part of a Hugging Face tokenizer that tokendelta uses, without importing transformers.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from datetime import datetime
from functools import lru_cache
from typing import Any

import jinja2
from jinja2.ext import Extension, loopcontrols
from jinja2.sandbox import SandboxedEnvironment
from tokenizers import AddedToken, Regex, models, pre_tokenizers, trainers
from tokenizers import Tokenizer as Backend
from tokenizers import decoders as backend_decoders

CORPUS = (
    "The order was found and the customer asked for a refund.\n\nWhere is it?\n\n\n"
    "user\nassistant\nsystem\ntool\nfunction\nname arguments parameters type object string "
    '{"name": "find_order", "arguments": {"key": "7"}}\n{"a": [1, 2, null], "b": "c"}\n'
    "You may call one or more functions. Let me see. Yes, here. In order to help the user\n"
    "  four    spaces\n\n  - a list\n  - of things\n    x = 1\n\n"
) * 4
SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
CONTROL = re.compile(
    r"<[|｜][A-Za-z0-9_▁ /]{1,40}[|｜]>|\[/?(?:INST|TOOL_CALLS|TOOL_RESULTS|TOOL_CONTENT"
    r"|AVAILABLE_TOOLS|SYSTEM_PROMPT|ARGS|CALL_ID|gMASK|BOS|EOS)\]|</?s>|<sop>|<start_of_turn>"
    r"|<end_of_turn>|<bos>|\]~!b\[|\]~b\]|\[e~\["
)
PLAIN = re.compile(r"</?(?:think|tool_call|tool_response|arg_key|arg_value|minimax:tool_call)>")
# Names of templates by how they begin, with the tokens that open a text and end a turn.
ENDS = {
    "deepseek": ("<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>"),
    "gemma": ("<bos>", "<end_of_turn>"),
    "glm": ("[gMASK]", "<|endoftext|>"),
    "gpt-oss": ("<|startoftext|>", "<|return|>"),
    "granite": ("<|end_of_text|>", "<|end_of_text|>"),
    "hermes": ("<|begin_of_text|>", "<|im_end|>"),
    "kimi": ("[BOS]", "<|im_end|>"),
    "lfm2": ("<|startoftext|>", "<|im_end|>"),
    "llama-4": ("<|begin_of_text|>", "<|eot|>"),
    "llama": ("<|begin_of_text|>", "<|eot_id|>"),
    "miles-kimi": ("[BOS]", "<|im_end|>"),
    "miles-minimax": ("]~!b[", "[e~["),
    "minimax": ("]~!b[", "[e~["),
    "mistral": ("<s>", "</s>"),
    "olmo": ("<|endoftext|>", "<|endoftext|>"),
    "phi-3.5": ("<s>", "<|endoftext|>"),
    "phi-4-mini": ("<|endoftext|>", "<|end|>"),
    "trl-deepseek": ("<｜begin▁of▁sentence｜>", "<｜end▁of▁sentence｜>"),
    "trl-glm": ("[gMASK]", "<|endoftext|>"),
    "tulu": ("<|begin_of_text|>", "<|end_of_text|>"),
}


def ends_of(name: str) -> tuple[str, str]:
    """The opening and the end-of-turn token for a template of this name."""
    found = [prefix for prefix in ENDS if name.startswith(prefix)]
    return ENDS[max(found, key=len)] if found else ("<|endoftext|>", "<|im_end|>")


class _Generation(Extension):
    """`{% generation %}` marks what a trainer would mask; it renders as it is."""

    tags = {"generation"}

    def parse(self, parser: Any) -> Any:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return jinja2.nodes.Scope(body).set_lineno(line)


def _raise(message: str) -> None:
    raise jinja2.TemplateError(message)


@lru_cache(maxsize=256)
def compile_template(source: str) -> jinja2.Template:
    environment = SandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
    )
    environment.filters["tojson"] = lambda value, ensure_ascii=False, indent=None, **rest: (
        json.dumps(value, ensure_ascii=ensure_ascii, indent=indent)
    )
    environment.globals["raise_exception"] = _raise
    environment.globals["strftime_now"] = lambda form: datetime(2026, 1, 2).strftime(form)
    return environment.from_string(source)


@lru_cache(maxsize=4)
def _trained(kind: str) -> str:
    """A small vocabulary as JSON: `bytes` like Qwen and Llama-3, `pieces` like Llama-2."""
    if kind == "bytes":
        backend = Backend(models.BPE())
        backend.pre_tokenizer = pre_tokenizers.Sequence(
            [
                pre_tokenizers.Split(Regex(SPLIT), "isolated"),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            ]
        )
        backend.decoder = backend_decoders.ByteLevel()
        trainer = trainers.BpeTrainer(
            vocab_size=900,
            initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
            show_progress=False,
        )
    else:
        backend = Backend(models.BPE(unk_token="<unk>", byte_fallback=True, fuse_unk=True))
        backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="first", split=False)
        backend.decoder = backend_decoders.Sequence(
            [
                backend_decoders.Replace("▁", " "),
                backend_decoders.ByteFallback(),
                backend_decoders.Fuse(),
            ]
        )
        trainer = trainers.BpeTrainer(
            vocab_size=700,
            special_tokens=["<unk>", *(f"<0x{byte:02X}>" for byte in range(256))],
            initial_alphabet=sorted({chr(code) for code in range(33, 127)} | {"▁", "\n"}),
            show_progress=False,
            max_token_length=12,
        )
    backend.train_from_iterator([CORPUS], trainer)
    text: str = backend.to_str()
    return text


class ChatTokenizer:
    """Duck-typed stand-in for a Hugging Face fast tokenizer."""

    def __init__(
        self,
        template: str,
        *,
        bos: str = "<|endoftext|>",
        eos: str = "<|im_end|>",
        kind: str = "bytes",
        more: Sequence[AddedToken] = (),
    ) -> None:
        self.chat_template = template
        self.bos_token, self.eos_token = bos, eos
        backend = Backend.from_str(_trained(kind))
        control = dict.fromkeys([bos, eos, *CONTROL.findall(template)])
        plain = dict.fromkeys(PLAIN.findall(template))
        given = {token.content for token in more}
        control = {text: None for text in control if text not in given}
        backend.add_special_tokens([*more, *(AddedToken(t, special=True) for t in control)])
        backend.add_tokens([AddedToken(t, special=False, normalized=False) for t in plain])
        self.backend_tokenizer = backend
        self.eos_token_id = backend.token_to_id(eos)
        self.added_tokens_decoder = backend.get_added_tokens_decoder()
        self._template = compile_template(template)

    def __len__(self) -> int:
        return int(self.backend_tokenizer.get_vocab_size())

    def apply_chat_template(
        self,
        conversation: Any,
        tools: Any = None,
        add_generation_prompt: bool = False,
        tokenize: bool = True,
        **kwargs: Any,
    ) -> Any:
        text = self._template.render(
            messages=conversation,
            tools=tools,
            add_generation_prompt=add_generation_prompt,
            bos_token=self.bos_token,
            eos_token=self.eos_token,
            **kwargs,
        )
        return self.encode(text) if tokenize else text

    def encode(self, text: str, add_special_tokens: bool = False) -> list[int]:
        ids: list[int] = self.backend_tokenizer.encode(text, add_special_tokens=False).ids
        return ids

    def decode(self, token_ids: Any, skip_special_tokens: bool = False) -> str:
        text: str = self.backend_tokenizer.decode(
            list(token_ids), skip_special_tokens=skip_special_tokens
        )
        return text

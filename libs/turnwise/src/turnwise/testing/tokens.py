"""A tokenizer of bytes with a chat template, and short ways to script what a policy says."""

from __future__ import annotations

import json
from functools import cache
from typing import Any

import tokendelta
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from turnwise.engine import Engine, SamplingParams
from turnwise.engine.scripted import Reply, reply
from turnwise.policy import Policy

TEMPLATE = """\
{%- for message in messages -%}
{%- if message.role == 'tool' -%}
{{- '<|im_start|>user\\n<tool_response>\\n' + message.content -}}
{{- '\\n</tool_response><|im_end|>\\n' -}}
{%- else -%}
{{- '<|im_start|>' + message.role + '\\n' + (message.content or '') -}}
{%- if loop.first and tools -%}
{{- '\\n' + tools | map(attribute='function.name') | join(' ') -}}
{%- endif -%}
{%- for call in message.tool_calls or [] -%}
{{- '<tool_call>\\n{"name": "' + call.function.name + '", "arguments": ' -}}
{{- call.function.arguments | tojson + '}\\n</tool_call>' -}}
{%- endfor -%}
{{- '<|im_end|>\\n' -}}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}{{- '<|im_start|>assistant\\n' -}}{%- endif -%}
"""
"""ChatML; the first message is followed by the names of the tools."""


@cache
def byte_tokenizer() -> Any:
    """A `PreTrainedTokenizerFast` with one token a byte, and the ChatML markers."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    base = Tokenizer(models.BPE({text: i for i, text in enumerate(alphabet)}, []))
    base.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    base.decoder = decoders.ByteLevel()
    base.add_special_tokens([AddedToken("<|im_start|>"), AddedToken("<|im_end|>")])
    make: Any = PreTrainedTokenizerFast
    wrapped = make(tokenizer_object=base, eos_token="<|im_end|>", pad_token="<|im_end|>")
    wrapped.chat_template = TEMPLATE
    return wrapped


@cache
def byte_profile() -> tokendelta.Profile:
    """Its audited template."""
    return tokendelta.Profile.from_tokenizer(byte_tokenizer())


def encode(text: str) -> list[int]:
    """The ids of a text, one a byte."""
    ids: list[int] = byte_tokenizer().encode(text, add_special_tokens=False)
    return ids


def decode(ids: Any) -> str:
    """The text of ids, special tokens included."""
    return str(byte_tokenizer().decode(list(map(int, ids)), skip_special_tokens=False))


def say(text: str, **options: Any) -> Reply:
    """A turn of the policy that ends with its stop token; options as of `scripted.reply`."""
    return reply([*encode(text), byte_tokenizer().eos_token_id], **options)


def call(name: str, /, **arguments: Any) -> str:
    """A tool call as the format qwen25 writes it."""
    body = json.dumps({"name": name, "arguments": arguments})
    return f"<tool_call>\n{body}\n</tool_call>"


def byte_policy(engine: Engine, *, context: int = 100_000, max_new_tokens: int = 2_000) -> Policy:
    """A policy of the byte tokenizer."""
    return Policy(
        engine=engine,
        profile=byte_profile(),
        max_context_tokens=context,
        tool_format="qwen25",
        sampling=SamplingParams(max_new_tokens=max_new_tokens),
    )

"""The tokenizer of the shipped policy: byte-level BPE whose words look alike everywhere.

Identifiers decide a task, and a small model copies them only if the same string gives the same
tokens in a sentence and inside of JSON. So:

1. Digits come in groups of at most three from the left, and every such group is one token.
2. `#W`, `@`, `.` and the `_` before a digit stand alone; a capitalised word never takes the space
   before it; words joined by `_` are one piece, so a tool's name is one token.
3. Everything else (JSON punctuation with its spaces) may merge.

Any text encodes, by bytes at worst. The chat template is ChatML as Qwen2.5 has it, with tool
calls and tool results in the same markers, and it only ever appends. Tools are shown as
signatures, one a line, because schemas would be most of the prompt.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

END_OF_TEXT, TURN_START, TURN_END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
MARKERS = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")
VOCAB_SIZE = 2048
# How often the trainer sees each digit group, so that all of them are merged before rare words.
_DIGIT_GROUP_COUNT = 200

_PIECES = (
    r"\d{1,3}"
    r"|[a-z]+(?:_[a-z]+)+"
    r"| (?=[a-z]+(?:[._@][a-z\d]|\d))"
    r"| ?[a-z]+"
    r"|[A-Z][a-z]*"
    r"|#W?|[@._]"
    r"|[^A-Za-z\d#@._]+"
)

CHAT_TEMPLATE = """\
{%- set start = 0 -%}
{%- if messages[0].role == 'system' or tools -%}
<|im_start|>system
{% if messages[0].role == 'system' -%}
{%- set start = 1 -%}
{{- messages[0].content -}}
{%- endif -%}
{%- if tools -%}
{{- '\\nTools:' -}}
{%- for tool in tools -%}
{%- set function = tool.function if tool.function is defined else tool -%}
{{- '\\n' + function.name + '(' -}}
{{- (function.parameters.properties or {}).keys() | join(', ') if function.parameters -}}
{{- ')' -}}
{%- endfor -%}
{{- '\\nA call: <tool_call>\\n{"name": ..., "arguments": {...}}\\n</tool_call>' -}}
{%- endif -%}
{{- '<|im_end|>\\n' -}}
{%- endif -%}
{%- for message in messages[start:] -%}
{%- if message.role == 'tool' -%}
{%- if loop.first or loop.previtem.role != 'tool' -%}
{{- '<|im_start|>user' -}}
{%- endif -%}
{{- '\\n<tool_response>\\n' + message.content + '\\n</tool_response>' -}}
{%- if loop.last or loop.nextitem.role != 'tool' -%}
{{- '<|im_end|>\\n' -}}
{%- endif -%}
{%- else -%}
{{- '<|im_start|>' + message.role + '\\n' + (message.content or '') -}}
{%- for call in message.tool_calls or [] -%}
{%- set function = call.function if call.function is defined else call -%}
{{- '\\n' if message.content or not loop.first -}}
{{- '<tool_call>\\n{"name": "' + function.name + '", "arguments": ' -}}
{{- function.arguments if function.arguments is string else function.arguments | tojson -}}
{{- '}\\n</tool_call>' -}}
{%- endfor -%}
{{- '<|im_end|>\\n' -}}
{%- endif -%}
{%- endfor -%}
{%- if add_generation_prompt -%}
{{- '<|im_start|>assistant\\n' -}}
{%- endif -%}
"""


def train_tokenizer(
    texts: Iterable[str], *, vocab_size: int = VOCAB_SIZE
) -> PreTrainedTokenizerFast:
    """Learns the merges from `texts`; the same texts give the same tokenizer.

    Args:
        texts: What the policy will read and write.
        vocab_size: At least 1,400: special tokens, bytes, and the 1,110 digit groups.

    Raises:
        ValueError: `vocab_size` leaves no room for words.
    """
    if vocab_size < 1_400:
        raise ValueError(f"vocab_size must be at least 1400, found {vocab_size}")
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_PIECES), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    special = [END_OF_TEXT, TURN_START, TURN_END, *MARKERS]
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=special,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_with_digit_groups(texts), trainer)
    # Markers are no control tokens: decoding must keep them for the tool-call parser.
    tokenizer.add_tokens([AddedToken(text, special=False, normalized=False) for text in MARKERS])
    make: Any = PreTrainedTokenizerFast
    wrapped: PreTrainedTokenizerFast = make(
        tokenizer_object=tokenizer,
        eos_token=TURN_END,
        pad_token=END_OF_TEXT,
        additional_special_tokens=[TURN_START],
        clean_up_tokenization_spaces=False,
        model_max_length=2048,
    )
    wrapped.chat_template = CHAT_TEMPLATE
    return wrapped


def encode(tokenizer: Any, text: str) -> list[int]:
    """Ids of `text` alone."""
    ids: list[int] = tokenizer.encode(text, add_special_tokens=False)
    return ids


def _with_digit_groups(texts: Iterable[str]) -> Iterator[str]:
    yield from texts
    for width in (2, 3):
        for number in range(10**width):
            yield " ".join([f"{number:0{width}}"] * _DIGIT_GROUP_COUNT)

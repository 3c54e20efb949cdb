"""The tokenizer of the shipped policy: byte-level BPE whose words look alike everywhere.

Identifiers decide a task, and a small model copies them only if the same string gives the same
tokens in a sentence and inside of JSON. So:

1. Digits come in groups of at most three from the left, and every such group is one token.
2. `#W`, `@`, `.` and the `_` before a digit stand alone; a capitalised word never takes the space
   before it; words joined by `_` are one piece, so a tool's name is one token.
3. Everything else (JSON punctuation with its spaces) may merge.

The chat template is ChatML as Qwen2.5 has it, with tool
calls and tool results in the same markers, and it only ever appends. Tools are shown as
signatures, one a line, because schemas would be most of the prompt.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from transformers import PreTrainedTokenizerFast
from turnwise.local import tokenizer

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
    return tokenizer.train_tokenizer(
        _with_digit_groups(texts),
        pieces=_PIECES,
        vocab_size=vocab_size,
        max_tokens=2048,
        chat_template=CHAT_TEMPLATE,
        markers=MARKERS,
    )


def _with_digit_groups(texts: Iterable[str]) -> Iterator[str]:
    yield from texts
    for width in (2, 3):
        for number in range(10**width):
            yield " ".join([f"{number:0{width}}"] * _DIGIT_GROUP_COUNT)

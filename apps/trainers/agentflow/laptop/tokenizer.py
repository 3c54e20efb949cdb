"""The tokenizer of the shipped planner: byte-level BPE for one kind of prompt.

1. Every digit is a token, so that a number's size shows in its length.
2. A word takes the space before it; names joined by `_` are one piece, so a tool's name is a token.
3. The line that presents a tool is one piece: it is the same in every prompt, and learned as one
   token it costs nothing to read.
4. Everything else (punctuation, JSON with its spaces) may merge.

Any text encodes, by bytes at worst. The chat template is ChatML as Qwen2.5 has it.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from tokenizers import Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

END_OF_TEXT, TURN_START, TURN_END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
VOCAB_SIZE = 1024
MAX_TOKENS = 1024

_PIECES = (
    r"[0-9]"
    r"|(?<=\n)[a-z]+(?:_[a-z]+)+\([^\n]*"
    r"| ?[A-Za-z]+(?:_[A-Za-z]+)*"
    r"|\n+"
    r"| ?[^A-Za-z0-9\n]+"
)

CHAT_TEMPLATE = """\
{%- for message in messages -%}
{{- '<|im_start|>' + message.role + '\\n' + message.content + '<|im_end|>\\n' -}}
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
        vocab_size: At least 300: special tokens, bytes, and some merges.

    Raises:
        ValueError: `vocab_size` leaves no room for words.
    """
    if vocab_size < 300:
        raise ValueError(f"vocab_size must be at least 300, found {vocab_size}")
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_PIECES), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[END_OF_TEXT, TURN_START, TURN_END],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    make: Any = PreTrainedTokenizerFast
    wrapped: PreTrainedTokenizerFast = make(
        tokenizer_object=tokenizer,
        eos_token=TURN_END,
        pad_token=END_OF_TEXT,
        additional_special_tokens=[TURN_START],
        clean_up_tokenization_spaces=False,
        model_max_length=MAX_TOKENS,
    )
    wrapped.chat_template = CHAT_TEMPLATE
    return wrapped

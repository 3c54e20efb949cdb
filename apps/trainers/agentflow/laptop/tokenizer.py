"""The tokenizer of the shipped planner: byte-level BPE for one kind of prompt.

1. Every digit is a token, so that a number's size shows in its length.
2. A word takes the space before it; names joined by `_` are one piece, so a tool's name is a token.
3. The line that presents a tool is one piece: it is the same in every prompt, and learned as one
   token it costs nothing to read.
4. Everything else (punctuation, JSON with its spaces) may merge.

The chat template is ChatML as Qwen2.5 has it.
"""

from __future__ import annotations

from collections.abc import Iterable

from transformers import PreTrainedTokenizerFast
from turnwise.local import tokenizer

VOCAB_SIZE = 1024
MAX_TOKENS = 1024

_PIECES = (
    r"[0-9]"
    r"|(?<=\n)[a-z]+(?:_[a-z]+)+\([^\n]*"
    r"| ?[A-Za-z]+(?:_[A-Za-z]+)*"
    r"|\n+"
    r"| ?[^A-Za-z0-9\n]+"
)


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
    return tokenizer.train_tokenizer(
        texts, pieces=_PIECES, vocab_size=vocab_size, max_tokens=MAX_TOKENS
    )

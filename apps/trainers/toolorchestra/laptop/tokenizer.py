"""The tokenizer of the shipped policy: byte-level BPE in which a word is a token.

1. A word takes the space before it; a tool's name is one piece.
2. A digit is a token, with the space before it if there is one.
3. Every other sign stands alone.

The chat template is ChatML.
"""

from __future__ import annotations

from collections.abc import Iterable

from transformers import PreTrainedTokenizerFast
from turnwise.local import tokenizer

VOCAB_SIZE = 512
MAX_TOKENS = 1024
_PIECES = r" ?[A-Za-z]+(?:_[a-z]+)*| ?[0-9]|\n+| ?[^A-Za-z0-9\s]|\s"


def train_tokenizer(texts: Iterable[str]) -> PreTrainedTokenizerFast:
    """Learns the merges from what the policy will read and write; equal texts, equal tokenizer."""
    return tokenizer.train_tokenizer(
        texts, pieces=_PIECES, vocab_size=VOCAB_SIZE, max_tokens=MAX_TOKENS
    )

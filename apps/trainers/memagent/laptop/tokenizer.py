"""The tokenizer of the shipped policy: a word with the space before it is a token.

Byte-level BPE, so that any text encodes, by bytes at worst. Names are words, so that a fact is
copied in nine tokens. The chat template is ChatML.
"""

from __future__ import annotations

from collections.abc import Iterable

from transformers import PreTrainedTokenizerFast
from turnwise.local import tokenizer

VOCAB_SIZE = 1024
MAX_TOKENS = 1024
_PIECES = r" ?[A-Za-z]+|[0-9]|\n+| ?[^A-Za-z0-9\s]+|\s"


def train_tokenizer(texts: Iterable[str]) -> PreTrainedTokenizerFast:
    """Learns the merges from what the policy will read and write; equal texts, equal tokenizer."""
    return tokenizer.train_tokenizer(
        texts, pieces=_PIECES, vocab_size=VOCAB_SIZE, max_tokens=MAX_TOKENS
    )

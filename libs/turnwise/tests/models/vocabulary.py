"""Byte tokenizers with special tokens of our choice, and a policy in front of a script."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Any

import tokendelta
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast
from turnwise.engine import Engine
from turnwise.policy import Policy

TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
CHATML = ("<|im_end|>", "<|im_start|>")


@cache
def tokenizer(specials: tuple[str, ...] = CHATML, added: tuple[str, ...] = ()) -> Any:
    """One token a byte, then the special tokens, then tokens that are added and not special."""
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    base = Tokenizer(models.BPE({text: i for i, text in enumerate(alphabet)}, []))
    base.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    base.decoder = decoders.ByteLevel()
    base.add_special_tokens([AddedToken(text, special=True) for text in specials])
    if added:
        base.add_tokens([AddedToken(text, special=False) for text in added])
    make: Any = PreTrainedTokenizerFast
    wrapped = make(tokenizer_object=base, eos_token=specials[0], pad_token=specials[0])
    wrapped.chat_template = TEMPLATE
    return wrapped


@cache
def profile() -> tokendelta.Profile:
    return tokendelta.Profile.from_tokenizer(tokenizer())


def policy(engine: Engine, max_context_tokens: int = 4096) -> Policy:
    return Policy(engine=engine, profile=profile(), max_context_tokens=max_context_tokens)


def ids(text: str) -> list[int]:
    """Ids of text, markers included."""
    return list(tokenizer().encode(text, add_special_tokens=False))


def special_ids(of: Any, text: str) -> Sequence[int]:
    """The special tokens that a tokenizer finds in `text`."""
    special = set(of.all_special_ids) | {
        token for token, added in of.added_tokens_decoder.items() if added.special
    }
    return [token for token in of.encode(text, add_special_tokens=False) if token in special]

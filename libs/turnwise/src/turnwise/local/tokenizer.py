"""Tokenizers of small policies: byte-level BPE over the pieces that a policy's texts are cut into.

Any text encodes, by bytes at worst. Where pieces end is a policy's own: identifiers that it has to
copy must look alike everywhere, a line that is always the same may be one token.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

END_OF_TEXT, TURN_START, TURN_END = "<|endoftext|>", "<|im_start|>", "<|im_end|>"
CHATML = (Path(__file__).parent / "chatml.jinja").read_text(encoding="utf-8")
"""The chat template of policies without tools."""


def train_tokenizer(
    texts: Iterable[str],
    *,
    pieces: str,
    vocab_size: int,
    max_tokens: int,
    chat_template: str = CHATML,
    markers: Sequence[str] = (),
) -> PreTrainedTokenizerFast:
    """Learns the merges from `texts`; the same texts give the same tokenizer.

    Args:
        texts: What the policy will read and write.
        pieces: Regular expression of the pieces within which tokens merge.
        vocab_size: Tokens at most, special ones and bytes included.
        max_tokens: Of a sequence.
        chat_template: In Jinja.
        markers: Texts that are one token each and stay when a turn is decoded.
    """
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(pieces), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[END_OF_TEXT, TURN_START, TURN_END, *markers],
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(texts, trainer)
    # Markers are no control tokens: decoding must keep them for the tool-call parser.
    tokenizer.add_tokens([AddedToken(text, special=False, normalized=False) for text in markers])
    make: Any = PreTrainedTokenizerFast
    wrapped: PreTrainedTokenizerFast = make(
        tokenizer_object=tokenizer,
        eos_token=TURN_END,
        pad_token=END_OF_TEXT,
        additional_special_tokens=[TURN_START],
        clean_up_tokenization_spaces=False,
        model_max_length=max_tokens,
    )
    wrapped.chat_template = chat_template
    return wrapped

"""Text that may go into a later prompt: it spells no special token, and is no thought.

A model's answer can end with a stop token's text, where the server leaves it in, or hold one that
it wrote letter by letter. Pasted into a prompt, either is encoded as the token itself and ends a
message that goes on (or opens one that nobody wrote).

    plain_text("42<|im_end|>")                     # "42"
    plain_text("say <|im_end|> twice")             # "say < |im_end|> twice"
    plain_text(text, Markers.of(tokenizer))        # those of one tokenizer alone
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from tokendelta.encoding import SpecialTokens

_FAMILIES = (
    r"<\|[^\s<>|]{1,64}\|>",  # ChatML, Llama 3, Phi, GLM
    r"<\uff5c[^\s<>\uff5c]{1,64}\uff5c>",  # DeepSeek
    r"</?s>|<(?:pad|unk|bos|eos|mask)>",  # SentencePiece
    r"<(?:start|end)_of_(?:turn|image)>",  # Gemma
    r"\[/?(?:INST|SYSTEM_PROMPT|AVAILABLE_TOOLS|TOOL_CALLS|TOOL_RESULTS)\]",  # Mistral
)

_SCRATCHPAD = re.compile(
    r"<(/?)(?:think|thinking|thought|thoughts|reasoning|scratchpad|reflection)>", re.IGNORECASE
)


class Markers:
    """The texts that become special tokens."""

    __slots__ = ("_pattern",)

    def __init__(self, texts: Iterable[str] = (), patterns: Iterable[str] = ()) -> None:
        """
        Args:
            texts: Markers as they are written.
            patterns: Regular expressions of further ones.
        """
        literal = [re.escape(text) for text in sorted(texts, key=len, reverse=True) if text]
        self._pattern = re.compile("|".join([*literal, *patterns]) or r"(?!)")

    @classmethod
    def of(cls, *tokenizers: Any) -> Markers:
        """The special tokens of Hugging Face tokenizers.

        Tokens that are added and not special, such as `<tool_call>`, are left as they are.
        """
        texts: set[str] = set()
        for tokenizer in tokenizers:
            specials = SpecialTokens(tokenizer)
            texts |= {text for text, token in specials.by_text.items() if token in specials.control}
        return cls(texts)

    def plain(self, text: str) -> str:
        """See `plain_text`."""
        text = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        found = list(self._pattern.finditer(text))
        end = len(text)
        while found and not text[found[-1].end() : end].strip():
            end = found.pop().start()
        text = self._pattern.sub(lambda match: f"{match[0][:1]} {match[0][1:]}", text[:end])
        # What a space can't part: a marker of one character, or one whose parted form is another.
        while self._pattern.search(text):
            text = self._pattern.sub("", text)
        return text


KNOWN_MARKERS = Markers(patterns=_FAMILIES)
"""Of the usual model families, for an endpoint whose tokenizer is not at hand."""


def plain_text(text: str, markers: Markers = KNOWN_MARKERS) -> str:
    """`text` without special tokens: markers at its end go, others get a space inside.

    Plain text stays as it is, and doing it twice changes nothing. Lone surrogates, which no
    tokenizer takes, become U+FFFD. Takes time linear in the length for markers of a real tokenizer.
    """
    return markers.plain(text)


def without_scratchpad(text: str) -> str:
    """What stands outside of scratchpads (`<think>` ...), as which some models answer.

    An end without a beginning ends one that the prompt began: all before it goes. One that never
    ends takes all after its beginning. Linear in the text's length.
    """
    kept: list[str] = []
    depth = start = 0
    for tag in _SCRATCHPAD.finditer(text):
        if depth == 0:
            kept.append(text[start : tag.start()])
        if tag[1]:
            if depth == 0:
                kept.clear()
            depth = max(0, depth - 1)
        else:
            depth += 1
        start = tag.end()
    if depth == 0:
        kept.append(text[start:])
    return "".join(kept).strip()

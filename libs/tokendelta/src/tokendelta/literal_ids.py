"""Literal continuations with their fixed parts encoded once."""

from __future__ import annotations

from collections.abc import Sequence

from tokendelta.encoding import Encoder, SpecialTokens
from tokendelta.findings import Literals
from tokendelta.probes import CONTENTS


class LiteralIds:
    """Ids of `literals.join(texts)`, encoding only what stands between special tokens.

    Text is encoded afresh behind a special token and before one, so the parts up to the last
    special token left of a content and from the first one right of it never change. If this does
    not hold on probes, the whole text is encoded each time.
    """

    __slots__ = ("_encoder", "_head", "_lead", "_literals", "_middle", "_tail", "_trail", "_whole")

    def __init__(self, literals: Literals, encoder: Encoder, specials: SpecialTokens) -> None:
        self._literals = literals
        self._encoder = encoder
        left, self._lead = _split_last(literals.left, specials)
        self._trail, right = _split_first(literals.right, specials)
        self._head = encoder.encode(left) if left else []
        self._tail = encoder.encode(right) if right else []
        # (text behind a content, fixed ids, text before the next), or None if no special token
        # stands between contents.
        self._middle: tuple[str, list[int], str] | None = None
        if specials.find(literals.between) is not None:
            trail, rest = _split_first(literals.between, specials)
            fixed, lead = _split_last(rest, specials)
            self._middle = (trail, encoder.encode(fixed), lead)
        self._whole = not self._head
        self._whole = self._whole or not all(
            self.encode(group) == encoder.encode(literals.join(group))
            for text in CONTENTS
            for group in ([text], [text, "b"], ["a", text, "c"])
            if len(group) == 1 or literals.between
        )

    def text(self, texts: Sequence[str]) -> str:
        """The continuation as text."""
        return self._literals.join(texts)

    def encode(self, texts: Sequence[str]) -> list[int]:
        """Ids of the continuation for the contents of one environment group."""
        if self._whole:
            return self._encoder.encode_inside(self._literals.join(texts))
        texts = self._literals.apply(texts)
        encode = self._encoder.encode
        if len(texts) == 1:
            return self._head + encode(self._lead + texts[0] + self._trail) + self._tail
        if self._middle is None:
            inner = self._literals.between.join(texts)
            return self._head + encode(self._lead + inner + self._trail) + self._tail
        trail, fixed, lead = self._middle
        ids = self._head + encode(self._lead + texts[0] + trail)
        for text in texts[1:-1]:
            ids += fixed + encode(lead + text + trail)
        return ids + fixed + encode(lead + texts[-1] + self._trail) + self._tail


def _split_last(text: str, specials: SpecialTokens) -> tuple[str, str]:
    """The text up to the end of its last special token, and the rest."""
    match = specials.last(text)
    at = match.end() if match else 0
    return text[:at], text[at:]


def _split_first(text: str, specials: SpecialTokens) -> tuple[str, str]:
    """The text before its first special token, and the rest."""
    match = specials.find(text)
    at = match.start() if match else len(text)
    return text[:at], text[at:]

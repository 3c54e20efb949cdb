"""Text to ids, and what the tokenizer says about its special tokens."""

from __future__ import annotations

import re
from typing import Any

from tokendelta.rendering import Tokenizer


class Encoder:
    """Encodes text as the tokenizer does, without tokens of its own at either end.

    The Rust tokenizer behind a Hugging Face fast tokenizer is called directly if it agrees on a
    probe, for the wrapper costs more than a short encoding.
    """

    __slots__ = ("tokenizer", "_backend")

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self._backend = None
        backend = getattr(tokenizer, "backend_tokenizer", None)
        if backend is not None:
            probe = "a  b\n\nwörld 12"
            try:
                agrees = list(backend.encode(probe, add_special_tokens=False).ids) == self.encode(
                    probe
                )
            except Exception:
                agrees = False
            if agrees:
                self._backend = backend

    def encode(self, text: str) -> list[int]:
        """Ids of the text; text that spells a special token becomes that token."""
        if self._backend is not None:
            ids: list[int] = self._backend.encode(text, add_special_tokens=False).ids
            return ids
        return [int(i) for i in self.tokenizer.encode(text, add_special_tokens=False)]


class SpecialTokens:
    """The tokens that the tokenizer finds in text before anything else.

    `by_text` holds all of them, `control` those which are marked as special.
    """

    __slots__ = ("by_text", "control", "pattern")

    def __init__(self, tokenizer: Any) -> None:
        decoder = getattr(tokenizer, "added_tokens_decoder", None) or {}
        self.by_text: dict[str, int] = {}
        self.control: set[int] = set()
        for token_id, token in decoder.items():
            text = getattr(token, "content", None) or str(token)
            self.by_text[text] = int(token_id)
            if getattr(token, "special", True):
                self.control.add(int(token_id))
        if not decoder:
            for text, token_id in _fallback(tokenizer).items():
                self.by_text[text] = token_id
                self.control.add(token_id)
        texts = sorted(self.by_text, key=len, reverse=True)
        self.pattern = re.compile("|".join(map(re.escape, texts))) if texts else None

    def find(self, text: str) -> re.Match[str] | None:
        """The first place in the text that spells a special token."""
        return self.pattern.search(text) if self.pattern else None

    def head(self, text: str) -> str:
        """The special token that the text starts with, or nothing."""
        match = self.pattern.match(text) if self.pattern else None
        return match.group() if match else ""

    def last_control(self, text: str) -> tuple[int, str] | None:
        """Place and text of the last token in the text that is marked special."""
        found = None
        if self.pattern:
            for match in self.pattern.finditer(text):
                if self.by_text[match.group()] in self.control:
                    found = (match.start(), match.group())
        return found


def _fallback(tokenizer: Any) -> dict[str, int]:
    added = getattr(tokenizer, "get_added_vocab", None)
    if callable(added):
        return {str(text): int(token_id) for text, token_id in added().items()}
    texts = getattr(tokenizer, "all_special_tokens", None) or []
    ids = getattr(tokenizer, "all_special_ids", None) or []
    return {str(text): int(token_id) for text, token_id in zip(texts, ids, strict=False)}

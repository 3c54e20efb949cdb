"""Text to ids, and what the tokenizer says about its special tokens."""

from __future__ import annotations

import re
from collections import OrderedDict
from typing import Any, Protocol

from tokendelta.rendering import Tokenizer

# Put inside of text that spells a special token, and taken out again when the text is encoded. A
# Unicode noncharacter, which neither templates nor tokenizers know and no text should hold.
BREAK = "\ufdd0"
_BREAKS = re.compile(r"\ufdd0|\\ufdd0")

PROBES = (
    "a  b\n\nwörld 12",
    " \n\n\n x\ty\r\n",
    "'ſ don't DON'T 'ReX 1234567",
    "zażółć 你好世界 🙂👩‍👩‍👧 e\u0301 \u1e9b\u0323",
    '{"name": "find_order", "arguments": {"key": "7"}}',
    "def f(x):\n\treturn x**2  # ok\n\n\n",
    "\u2028\u00a0\u3000x\x00\x7f",
)
_CACHED_CHARACTERS = 512
_CACHE_ENTRIES = 64


class TextEncoder(Protocol):
    """Encodes text, special tokens included, and nothing before or behind it."""

    def encode(self, text: str) -> list[int]: ...


class HuggingFaceEncoder:
    """Calls the Rust tokenizer behind a fast tokenizer, as its wrapper costs more than a short
    encoding, or the tokenizer itself where there is none or it disagrees."""

    __slots__ = ("_backend", "_tokenizer")

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._backend: Any = None
        backend = getattr(tokenizer, "backend_tokenizer", None)
        if backend is None:
            return
        try:
            agrees = all(
                list(backend.encode(probe, add_special_tokens=False).ids) == self.encode(probe)
                for probe in PROBES
            )
        except Exception:
            agrees = False
        if agrees:
            self._backend = backend

    def encode(self, text: str) -> list[int]:
        if self._backend is not None:
            ids: list[int] = self._backend.encode(text, add_special_tokens=False).ids
            return ids
        return [int(i) for i in self._tokenizer.encode(text, add_special_tokens=False)]


class SpecialTokens:
    """The tokens that the tokenizer finds in text before anything else.

    `by_text` holds all of them, `control` the ids of those which are marked as special. `plain`
    is true if none takes whitespace around it or asks for a word boundary.
    """

    __slots__ = ("_spelled", "by_text", "control", "pattern", "plain")

    def __init__(self, tokenizer: Any) -> None:
        decoder = getattr(tokenizer, "added_tokens_decoder", None) or {}
        self.by_text: dict[str, int] = {}
        self.control: set[int] = set()
        self.plain = True
        for token_id, token in decoder.items():
            text = getattr(token, "content", None) or str(token)
            self.by_text[text] = int(token_id)
            if getattr(token, "special", True):
                self.control.add(int(token_id))
            flags = (getattr(token, name, False) for name in ("lstrip", "rstrip", "single_word"))
            if any(flags):
                self.plain = False
        if not decoder:
            self.by_text = _fallback(tokenizer)
            self.control = set(self.by_text.values())
        texts = sorted(self.by_text, key=len, reverse=True)
        self.pattern = _any_of(texts)
        # Gemma's newlines and runs of spaces are tokens of this kind, and text like any other.
        self._spelled = _any_of([text for text in texts if text.strip()])

    def find(self, text: str) -> re.Match[str] | None:
        """The first place in the text that spells a special token."""
        return self.pattern.search(text) if self.pattern else None

    def spelled(self, text: str) -> re.Match[str] | None:
        """The first place in the text that spells one that is not white space."""
        return self._spelled.search(text) if self._spelled else None

    def head(self, text: str) -> str:
        """The special token that the text starts with, or nothing."""
        match = self.pattern.match(text) if self.pattern else None
        return match.group() if match else ""

    def last(self, text: str) -> re.Match[str] | None:
        """The last place in the text that spells a special token."""
        found = list(self.pattern.finditer(text)) if self.pattern else []
        return found[-1] if found else None

    def last_control(self, text: str) -> tuple[int, str] | None:
        """Place and text of the last token in the text that is marked special."""
        found = None
        if self.pattern:
            for match in self.pattern.finditer(text):
                if self.by_text[match.group()] in self.control:
                    found = (match.start(), match.group())
        return found

    def broken(self, text: str) -> str:
        """The text with a BREAK inside of all that spells a special token but white space."""
        pieces, done = [], 0
        while self._spelled and (match := self._spelled.search(text, done)) is not None:
            at = match.start() + 1
            pieces.append(text[done:at])
            done = at
        return BREAK.join([*pieces, text[done:]])


def _any_of(texts: list[str]) -> re.Pattern[str] | None:
    return re.compile("|".join(map(re.escape, texts))) if texts else None


def _fallback(tokenizer: Any) -> dict[str, int]:
    added = getattr(tokenizer, "get_added_vocab", None)
    if callable(added):
        return {str(text): int(token_id) for text, token_id in added().items()}
    texts = getattr(tokenizer, "all_special_tokens", None) or []
    ids = getattr(tokenizer, "all_special_ids", None) or []
    return {str(text): int(token_id) for text, token_id in zip(texts, ids, strict=False)}


class Encoder:
    """Encodes rendered text and remembers its long constant parts.

    The remembered parts lie between special tokens, where encoding starts afresh; this is used
    only if it holds on probes.
    """

    __slots__ = ("_cache", "_inner", "_separable", "_specials", "_starts_with_space")

    def __init__(self, inner: TextEncoder, specials: SpecialTokens) -> None:
        self._inner = inner
        self._specials = specials
        self._cache: OrderedDict[str, list[int]] = OrderedDict()
        self._separable = specials.plain and self._is_separable()
        self._starts_with_space = inner.encode("x") != inner.encode("\nx")[-1:]

    def encode(self, text: str) -> list[int]:
        """Ids of the text; text that spells a special token becomes that token."""
        return self._inner.encode(text)

    def encode_broken(self, text: str, inside: bool = False) -> list[int]:
        """Ids of text with breaks: taken out, and nothing that they part becomes one token.

        `inside` says that the text does not start a sequence.
        """
        first, *rest = _BREAKS.split(text)
        ids = self.encode_inside(first) if inside else self._inner.encode(first)
        # Not in place: a tokenizer may keep the list that it gave.
        ids = list(ids)
        for piece in rest:
            ids += self.encode_inside(piece)
        return ids

    def encode_long(self, text: str) -> list[int]:
        """Ids of a whole prompt, of which the long parts are likely to come again."""
        pattern = self._specials.pattern
        if not self._separable or pattern is None:
            return self.encode(text)
        ids: list[int] = []
        done = start = 0
        for match in pattern.finditer(text):
            if match.start() - start >= _CACHED_CHARACTERS:
                ids += self._inner.encode(text[done:start])
                ids += self._remembered(text[start : match.start()])
                done = match.start()
            start = match.end()
        if len(text) - start >= _CACHED_CHARACTERS:
            ids += self._inner.encode(text[done:start])
            ids += self._remembered(text[start:])
            return ids
        return ids + self._inner.encode(text[done:])

    def _remembered(self, text: str) -> list[int]:
        ids = self._cache.get(text)
        if ids is None:
            ids = self._inner.encode(text)
            self._cache[text] = ids
            if len(self._cache) > _CACHE_ENTRIES:
                self._cache.popitem(last=False)
        return ids

    def encode_inside(self, text: str) -> list[int]:
        """Ids of text that does not start a sequence.

        Some tokenizers put a space before the first text of a sequence, though not behind a special
        token.
        """
        if not self._starts_with_space or self._specials.head(text):
            return self._inner.encode(text)
        for anchor, token in self._specials.by_text.items():
            ids = self._inner.encode(anchor + text)
            if ids[:1] == [token]:
                return ids[1:]
        return self._inner.encode(text)

    def _is_separable(self) -> bool:
        encode = self._inner.encode
        for text in list(self._specials.by_text)[:3]:
            for probe in PROBES:
                apart = encode(probe) + encode(text) + encode(probe)
                if encode(probe + text + probe) != apart:
                    return False
        return True

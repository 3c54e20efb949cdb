"""A faster encoder for byte-level BPE: tiktoken with the tokenizer's own data.

It takes the vocabulary, the pre-tokenisation and the added tokens out of the Hugging Face
tokenizer, and is used only if it gives the same ids on probes. Text that is not in normal form is
left to the tokenizer.
"""

from __future__ import annotations

import json
import unicodedata
from typing import Any

from tokendelta.encoding import PROBES, SpecialTokens, TextEncoder
from tokendelta.rendering import Tokenizer

# The pre-tokenisation that ByteLevel brings along where no pattern is given: that of GPT-2.
_GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
_CORPUS = (
    *PROBES,
    "The quick brown fox jumps over the lazy dog. " * 3,
    "\n".join("\t" * depth + f"if x[{depth}] != y:" for depth in range(6)),
    "I'll we've they'd IT'S 'tis  \n \n\n\r\n\r \t \u2003\u200b",
    "0123456789 1,234.56 ١٢٣ ⅷ ½ x²",
    "Привет, мир! こんにちは 안녕하세요 שלום مرحبا ไทย हिन्दी",
    "https://example.org/a_b?c=d&e=%20#f <html>&amp;</html> \\n \\u0041",
    "🙂🙃👨‍👩‍👧‍👦🏳️‍🌈 ﷽ \U0001f468\U0001f3fd",
    "".join(map(chr, range(0x20, 0x250))),
    " ".join(map(chr, range(0x370, 0x400))),
    "".join(f"{a}{b}" for a in " \n\tx'1." for b in " \n\tx'1."),
)


_QUICK: dict[int, tuple[Any, BytePairEncoder | None]] = {}


class BytePairEncoder:
    """Byte-level BPE by tiktoken between the special tokens of the tokenizer."""

    __slots__ = ("_by_text", "_fallback", "_normal", "_ordinary", "_pattern")

    def __init__(
        self, encoding: Any, specials: SpecialTokens, fallback: TextEncoder, normal: str
    ) -> None:
        self._ordinary = encoding.encode_ordinary
        self._by_text = specials.by_text
        self._pattern = specials.pattern
        self._fallback = fallback
        self._normal = normal

    def encode(self, text: str) -> list[int]:
        """Ids of the text; text that spells a special token becomes that token."""
        if self._normal and not text.isascii() and not _is_normal(self._normal, text):
            return self._fallback.encode(text)
        pattern = self._pattern
        match = pattern.search(text) if pattern is not None else None
        if match is None:
            ids: list[int] = self._ordinary(text)
            return ids
        ids, at = [], 0
        while match is not None:
            if match.start() > at:
                ids += self._ordinary(text[at : match.start()])
            ids.append(self._by_text[match.group()])
            at = match.end()
            match = pattern.search(text, at) if pattern is not None else None
        if at < len(text):
            ids += self._ordinary(text[at:])
        return ids


def _is_normal(form: str, text: str) -> bool:
    # Combining marks are left to the tokenizer too: which of them compose, and in which order they
    # come, depends on the version of Unicode.
    return unicodedata.is_normalized(form, text) and not any(  # type: ignore[arg-type]
        unicodedata.combining(character) for character in text
    )


def quick_encoder(
    tokenizer: Tokenizer, specials: SpecialTokens, fallback: TextEncoder
) -> BytePairEncoder | None:
    """The faster encoder of a tokenizer, built once: its vocabulary takes a second to read."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    key = id(backend)
    known = _QUICK.get(key)
    if known is not None and known[0] is backend:
        return known[1]
    quick = byte_pair_encoder(tokenizer, specials, fallback)
    if backend is not None:
        _QUICK[key] = (backend, quick)
        while len(_QUICK) > 8:
            _QUICK.pop(next(iter(_QUICK)))
    return quick


def byte_pair_encoder(
    tokenizer: Tokenizer, specials: SpecialTokens, fallback: TextEncoder
) -> BytePairEncoder | None:
    """The faster encoder, or None if there is no tiktoken, the tokenizer is of another kind, or the
    ids of a probe differ."""
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is None or not specials.plain:
        return None
    try:
        import tiktoken
    except ImportError:
        return None
    try:
        parts = _parts(json.loads(backend.to_str()))
    except (AttributeError, KeyError, TypeError, ValueError):
        return None
    if parts is None:
        return None
    pattern, ranks, normal = parts
    try:
        encoding = tiktoken.Encoding(
            "tokendelta", pat_str=pattern, mergeable_ranks=ranks, special_tokens={}
        )
        encoder = BytePairEncoder(encoding, specials, fallback, normal)
        agrees = all(encoder.encode(text) == fallback.encode(text) for text in _probes(specials))
    except Exception:
        return None
    return encoder if agrees else None


def _probes(specials: SpecialTokens) -> list[str]:
    joined = "\n".join(f"a{text} {text}b" for text in specials.by_text)
    return [*_CORPUS, joined]


def _parts(data: dict[str, Any]) -> tuple[str, dict[bytes, int], str] | None:
    """Pattern, ranks and normal form out of a tokenizer's JSON."""
    model = data["model"]
    if model["type"] != "BPE" or model.get("byte_fallback") or model.get("dropout"):
        return None
    normalizer = data.get("normalizer")
    normal = normalizer["type"] if normalizer else ""
    if normal not in ("", "NFC", "NFKC"):
        return None
    pattern = _pattern(data["pre_tokenizer"])
    if pattern is None:
        return None
    letters = {letter: byte for byte, letter in _byte_letters().items()}
    added = {token["content"] for token in data.get("added_tokens", [])}
    ranks: dict[bytes, int] = {}
    for text, rank in model["vocab"].items():
        if text in added and any(letter not in letters for letter in text):
            continue
        ranks[bytes(letters[letter] for letter in text)] = rank
    return pattern, ranks, normal


def _pattern(pre_tokenizer: dict[str, Any]) -> str | None:
    if pre_tokenizer["type"] == "ByteLevel":
        plain = pre_tokenizer.get("use_regex", True) and not pre_tokenizer["add_prefix_space"]
        return _GPT2 if plain else None
    if pre_tokenizer["type"] != "Sequence":
        return None
    steps = pre_tokenizer["pretokenizers"]
    if [step["type"] for step in steps] != ["Split", "ByteLevel"]:
        return None
    split, byte_level = steps
    if split["behavior"] != "Isolated" or split.get("invert") or byte_level["add_prefix_space"]:
        return None
    if byte_level.get("use_regex", True):
        return None
    regex = split["pattern"].get("Regex")
    return str(regex) if regex else None


def _byte_letters() -> dict[int, str]:
    """The printable letter that byte-level BPE writes for each byte (GPT-2's table)."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    letters = {byte: chr(byte) for byte in printable}
    others = (byte for byte in range(256) if byte not in letters)
    letters.update({byte: chr(256 + place) for place, byte in enumerate(others)})
    return letters

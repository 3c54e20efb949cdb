"""Qwen's real vocabulary as a fast tokenizer, built without a download.

`dashscope` ships the ranks of Qwen's byte-level BPE. The merges follow from the ranks: a token is
the merge of the two parts that are left when its bytes are merged by lower ranks alone. The
pre-tokenisation and the special tokens are those of Qwen2.5 and Qwen3.
"""

from __future__ import annotations

import base64
import importlib.util
import os
import tempfile
from functools import lru_cache
from pathlib import Path
from typing import Any

PATTERN = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
CONTROL = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|object_ref_start|>",
    "<|object_ref_end|>",
    "<|box_start|>",
    "<|box_end|>",
    "<|quad_start|>",
    "<|quad_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|vision_pad|>",
    "<|image_pad|>",
    "<|video_pad|>",
)
PLAIN = (
    "<tool_call>",
    "</tool_call>",
    "<|fim_prefix|>",
    "<|fim_middle|>",
    "<|fim_suffix|>",
    "<|fim_pad|>",
    "<|repo_name|>",
    "<|file_sep|>",
    "<tool_response>",
    "</tool_response>",
    "<think>",
    "</think>",
)


def ranks_path() -> Path | None:
    """The file with the ranks, or None where dashscope is not installed."""
    spec = importlib.util.find_spec("dashscope")
    if spec is None or not spec.submodule_search_locations:
        return None
    path = Path(spec.submodule_search_locations[0]) / "resources" / "qwen.tiktoken"
    return path if path.is_file() else None


def read_ranks(path: Path) -> dict[bytes, int]:
    ranks = {}
    for line in path.read_bytes().splitlines():
        token, rank = line.split()
        ranks[base64.b64decode(token)] = int(rank)
    return ranks


def _parts(token: bytes, ranks: dict[bytes, int]) -> list[bytes]:
    """The token's bytes after every merge of a rank lower than its own."""
    limit = ranks[token]
    parts = [bytes([byte]) for byte in token]
    while len(parts) > 2:
        best, at = limit, -1
        for index in range(len(parts) - 1):
            rank = ranks.get(parts[index] + parts[index + 1], limit)
            if rank < best:
                best, at = rank, index
        if at < 0:
            break
        parts[at : at + 2] = [parts[at] + parts[at + 1]]
    return parts


def _byte_letters() -> dict[int, str]:
    """The printable letter that byte-level BPE uses for each byte."""
    printable = [*range(33, 127), *range(161, 173), *range(174, 256)]
    letters = {byte: chr(byte) for byte in printable}
    others = (byte for byte in range(256) if byte not in letters)
    letters.update({byte: chr(256 + place) for place, byte in enumerate(others)})
    return letters


def build_backend(ranks: dict[bytes, int]) -> Any:
    """A `tokenizers.Tokenizer` with the ranks, NFC, Qwen's split and its 26 added tokens."""
    from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers
    from tokenizers import Tokenizer as Backend

    letters = _byte_letters()

    def spell(token: bytes) -> str:
        return "".join(letters[byte] for byte in token)

    ordered = sorted(ranks, key=ranks.__getitem__)
    merges = []
    for token in ordered:
        if len(token) > 1:
            left, right = _parts(token, ranks)
            merges.append((spell(left), spell(right)))
    vocabulary = {spell(token): rank for token, rank in ranks.items()}
    backend = Backend(models.BPE(vocabulary, merges))
    backend.normalizer = normalizers.NFC()
    backend.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(PATTERN), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    backend.decoder = decoders.ByteLevel()
    backend.add_special_tokens([AddedToken(text, special=True) for text in CONTROL])
    backend.add_tokens([AddedToken(text, special=False, normalized=False) for text in PLAIN])
    return backend


@lru_cache(maxsize=1)
def backend_json() -> str | None:
    """The tokenizer as JSON, kept in the user's temporary folder: building takes over a second."""
    path = ranks_path()
    if path is None:
        return None
    size = path.stat().st_size
    cache = Path(tempfile.gettempdir()) / f"turnwise-qwen-{os.getuid()}-{size}.json"
    if cache.is_file() and cache.stat().st_uid == os.getuid():
        return cache.read_text(encoding="utf-8")
    text: str = build_backend(read_ranks(path)).to_str()
    partial = cache.with_suffix(f".{os.getpid()}")
    partial.write_text(text, encoding="utf-8")
    partial.replace(cache)
    return text


def qwen_tokenizer(template: str) -> Any:
    """A Hugging Face fast tokenizer with Qwen's vocabulary and the chat template.

    Returns None where dashscope is not installed.
    """
    from tokenizers import Tokenizer as Backend
    from transformers import PreTrainedTokenizerFast

    text = backend_json()
    if text is None:
        return None
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=Backend.from_str(text),
        eos_token="<|im_end|>",
        pad_token="<|endoftext|>",
    )
    tokenizer.chat_template = template
    return tokenizer

from typing import Any

from toolparse.result.model import Parsed, Source

class PairTags:
    def __init__(
        self, shape: Any, single: bool, think: tuple[bytes, bytes], stops: tuple[bytes, ...]
    ) -> None: ...

def tagged_pairs(
    source: Source, tags: PairTags, grammar: Any, tools: Any, thinking: bool
) -> Parsed | None: ...

"""A coverage-guided fuzzer over all formats; needs atheris in an environment of its own.

    pip install atheris libs/toolparse
    python -m benchmarks.toolparse.fuzz FOLDER -max_total_time=900 -max_len=1500

FOLDER gets the canonical text of every format as the first seeds. The first byte of an input
is the format, the second says whether tools are declared, the mode, whether the prompt opened
the thinking, and the size of the chunks. What must hold: nothing raises, arguments are
encodable, strict equals lenient on faultless text, and a stream gives what one shot gives.
"""

from __future__ import annotations

import importlib
import json
import sys
from pathlib import Path
from typing import Any

TOOLS = [
    {
        "name": "f",
        "parameters": {
            "properties": {
                "a": {"type": "string"},
                "n": {"type": "integer"},
                "b": {"type": "boolean"},
                "x": {"type": ["number", "null"]},
                "o": {"type": "object"},
            }
        },
    },
    {"name": "g"},
]


def view(parsed: Any) -> tuple[Any, ...]:
    attempts = [(c.name, json.dumps(c.arguments), c.status, c.byte_span) for c in parsed.attempts]
    return parsed.content, parsed.reasoning, attempts


def check(toolparse: Any, names: list[str], toolset: Any, data: bytes) -> None:
    """One input."""
    if len(data) < 3:
        return
    format, bits, text = names[data[0] % len(names)], data[1], data[2:]
    tools = toolset if bits & 1 else None
    mode = "lenient" if bits & 2 else "strict"
    thinking = bool(bits & 4)
    parsed = toolparse.parse(text, format, tools, mode, thinking=thinking)
    assert parsed.counts and parsed.to_dict()
    for call in parsed.attempts:
        json.dumps(call.arguments, allow_nan=False, ensure_ascii=False).encode()
        assert call.value_spans is None or call.span
    if not parsed.errors and mode == "strict":
        lenient = toolparse.parse(text, format, tools, "lenient", thinking=thinking)
        assert view(lenient) == view(parsed)
    stream = toolparse.Stream(format, tools, mode, thinking=thinking)
    size = (bits >> 3) + 1
    for at in range(0, len(text), size):
        stream.feed(text[at : at + size])
    early = stream.calls
    assert view(stream.finish()) == view(parsed)
    for before, after in zip(early, parsed.calls[: len(early)], strict=True):
        assert (before.name, before.byte_span) == (after.name, after.byte_span)
    if bits & 8:
        assert toolparse.parse(text, format, tools, "sglang").content is not None


def seed(folder: Path, names: list[str], write: Any) -> None:
    """The canonical text of each format: whole, after a thought, and cut."""
    folder.mkdir(parents=True, exist_ok=True)
    calls = [("f", {"a": "x y", "n": 3, "o": {"k": [1]}}), ("g", {"q": "é"})]
    for i, name in enumerate(names):
        text = write(name).write(calls)
        for bits, variant in ((1, f"hi\n{text}"), (3, f"<think>a</think>{text}"), (9, text[:-4])):
            (folder / f"{i}_{bits}").write_bytes(bytes([i, bits]) + variant.encode())


def main() -> None:
    if "--help" in sys.argv:
        print(__doc__)
        return
    atheris = importlib.import_module("atheris")
    with atheris.instrument_imports(include=["toolparse"]):
        toolparse = importlib.import_module("toolparse")
        formats = importlib.import_module("toolparse.grammars.table")
    names = list(formats.formats())
    toolset = toolparse.ToolSet(TOOLS)
    if len(sys.argv) > 1 and not sys.argv[1].startswith("-"):
        seed(Path(sys.argv[1]), names, formats.grammar_of)
    atheris.Setup(sys.argv, lambda data: check(toolparse, names, toolset, data))
    atheris.Fuzz()


if __name__ == "__main__":
    main()

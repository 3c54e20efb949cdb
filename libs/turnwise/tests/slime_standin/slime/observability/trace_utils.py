"""Spans on samples: each leaves its name and attributes in `sample.trace["events"]`."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any


def build_sglang_meta_trace_attrs(meta: dict[str, Any]) -> dict[str, Any]:
    names = ("prompt_tokens", "completion_tokens", "cached_tokens", "e2e_latency")
    return {name: meta[name] for name in names if meta.get(name) is not None}


@contextmanager
def trace_span(target: Any, name: str, *, attrs: dict[str, Any] | None = None) -> Iterator[Any]:
    found: dict[str, Any] = dict(attrs or {})
    try:
        yield found
    finally:
        if not hasattr(target, "trace"):
            target.trace = {"events": []}
        target.trace["events"].append({"type": "span_end", "name": name, "attrs": found})

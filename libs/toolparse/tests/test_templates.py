"""The writers against public chat templates: the canonical text is what a template writes."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import toolparse
from jinja2.sandbox import ImmutableSandboxedEnvironment
from toolparse_support import written

ARGUMENTS = {"a": "x y", "n": 2, "b": True, "x": None, "o": {"k": [1, "é"]}}
# The templates that take arguments as JSON text.
AS_TEXT = ("deepseek-v3",)
NAMES = (
    "qwen2.5-instruct",
    "qwen3",
    "hermes-3-tool",
    "granite-4.0",
    "qwen3-coder",
    "qwen3.5-4b",
    "nemotron-3-nano",
    "glm-4.5",
    "glm-4.7-flash",
    "minimax-m2",
    "deepseek-v3",
    "deepseek-v3.1",
    "deepseek-v3.2",
    "llama-3.1",
)


def dumped(value: Any, ensure_ascii: bool = False, **options: Any) -> str:
    """`tojson` as transformers defines it for chat templates."""
    return json.dumps(value, ensure_ascii=ensure_ascii, **options)


def rendered(template: str, arguments: Any) -> str:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols"]
    )
    environment.filters["tojson"] = dumped
    environment.globals["strftime_now"] = lambda form: "2026-01-01"
    call = {"id": "c0", "type": "function", "function": {"name": "f", "arguments": arguments}}
    messages = [
        {"role": "user", "content": "hi"},
        {"role": "assistant", "content": "", "tool_calls": [call]},
        {"role": "tool", "content": "ok", "tool_call_id": "c0", "name": "f"},
    ]
    parameters = {"type": "object", "properties": {"a": {"type": "string", "description": "d"}}}
    function = {"name": "f", "description": "d", "parameters": parameters}
    return environment.from_string(template).render(
        messages=messages,
        tools=[{"type": "function", "function": function}],
        add_generation_prompt=False,
        bos_token="",
        eos_token="",
    )


@pytest.mark.parametrize("name", NAMES)
def test_the_canonical_text_is_what_the_template_writes(name: str) -> None:
    folder = os.environ.get("TURNWISE_SHARED_DATA")
    if not folder:
        pytest.skip("TURNWISE_SHARED_DATA is not set")
    template = Path(folder, "templates", f"{name}.jinja").read_text(encoding="utf-8")
    format = toolparse.detect(template)
    assert format
    text = json.dumps(ARGUMENTS, ensure_ascii=False)
    assert written(format, [("f", ARGUMENTS)]) in rendered(
        template, text if name in AS_TEXT else ARGUMENTS
    )

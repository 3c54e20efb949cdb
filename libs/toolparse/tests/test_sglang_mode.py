"""`sglang` mode on faulty texts: the answers are those of sglang 0.5.23, as it was run on them."""

from __future__ import annotations

import pytest
import toolparse
from toolparse_support import DECLARED

OPEN3, CLOSE3 = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
CALL3 = "<｜tool▁call▁begin｜>function<｜tool▁sep｜>f\n```json\n"
# (format, text, names of the calls, content)
ROWS = [
    ("qwen25", '<tool_call>\n{"name": "g", "arguments": {"q": 1,}}\n</tool_call>', [], ""),
    ("qwen25", 'a\n<tool_call>\n{"name": "g", "arguments": {}}\n', [], "a"),
    ("qwen3_coder", "Sure.\n<function=g>\n</function>\n</tool_call>", [],
     "Sure.\n<function=g>\n</function>\n</tool_call>"),
    ("qwen3_coder", "<tool_call>\n<function=f>\n<parameter=a>\nx\n</function>\n</tool_call>",
     ["f"], ""),
    ("deepseekv3", f'{CALL3}{{"a": "x"}}\n```<｜tool▁call▁end｜>', [],
     f'{CALL3}{{"a": "x"}}\n```<｜tool▁call▁end｜>'),
    ("kimi_k2", '<|tool_call_begin|>functions.g:0<|tool_call_argument_begin|>{}<|tool_call_end|>',
     [], '<|tool_call_begin|>functions.g:0<|tool_call_argument_begin|>{}<|tool_call_end|>'),
    ("deepseekv4", '<｜DSML｜invoke name="g">\n</｜DSML｜invoke>', ["g"], ""),
    ("deepseekv4", '<｜DSML｜tool_calls>\n<｜DSML｜invoke name="g" />\n</｜DSML｜tool_calls>',
     ["g"], ""),
    ("minimax-m2", '<minimax:tool_call>\n<invoke name="g"/>\n</minimax:tool_call>', [], ""),
    ("interns1", '<|action_start|><|plugin|>\n{"name": "g", "parameters": {}}<|action_end|>', [],
     '<|action_start|><|plugin|>\n{"name": "g", "parameters": {}}<|action_end|>'),
    ("gemma4", 'Hm. <|tool_call>call:f{a:<|"|>x', [], 'Hm. <|tool_call>call:f{a:<|"|>x'),
    ("apertus2509", 'Look. <|tools_prefix|>[{"g": {}}]<|tools_suffix|>', ["g"], "Look."),
    ("apertus2509", " Look. <|tools_prefix|>[{", [], "Look. <|tools_prefix|>[{"),
    ("mistral", '[TOOL_CALLS] {"name": "g", "arguments": {}}', [], ""),
]  # fmt: skip


@pytest.mark.parametrize(("format", "text", "names", "content"), ROWS)
def test_a_call_that_sglang_drops_is_not_repaired_and_run(
    format: str, text: str, names: list[str], content: str
) -> None:
    parsed = toolparse.parse(text, format, DECLARED, "sglang")
    assert [call.name for call in parsed.calls] == names
    assert parsed.content == content

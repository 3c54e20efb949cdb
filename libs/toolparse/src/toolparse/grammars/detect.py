"""The format that a chat template asks its model for, by the marks it writes."""

from __future__ import annotations

import re
from typing import Final

# The first group of marks that is all there decides; the order goes from the special to the
# general, for `<tool_call>` alone stands in several formats.
_RULES: Final[tuple[tuple[str, tuple[str, ...]], ...]] = (
    ("minimax-m3", ("]<]minimax[>[",)),
    ("minimax-m2", ("minimax:tool_call",)),
    ("seed_oss", ("seed:tool_call",)),
    ("iquest_q1", ("iquest_tool_call",)),
    ("longcat", ("longcat_tool_call",)),
    ("k2_horizon", ("ifm|tool_call",)),
    ("step3", ("steptml:invoke",)),
    ("muse", ("atem:",)),
    ("beam", ("rfl:parameter",)),
    ("dots", ("dots_function_call",)),
    ("plamo3", ("plamo:begin_tool_request",)),
    ("solar_open2", ("tool_call:start",)),
    ("gigachat35", ("｜GCML｜",)),
    ("deepseekv41", ("｜DSML｜ calls",)),
    ("deepseekv32", ("｜DSML｜", "function_calls")),
    ("deepseekv4", ("｜DSML｜",)),
    ("deepseekv3", ("tool▁call▁begin", "```json")),
    ("deepseekv31", ("tool▁call▁begin",)),
    ("kimi_k2", ("tool_call_argument_begin",)),
    ("kimi_k3", ("<|open|>",)),
    ("kimi_k3", ("|open|>", "argument")),
    ("gemma4", ("<|tool_call>",)),
    ("functiongemma", ("start_function_call",)),
    ("inkling", ("content_invoke_tool_json",)),
    ("gpt-oss", ("<|channel|>", "commentary")),
    ("apertus2509", ("tools_prefix",)),
    ("cohere_command4", ("START_ACTION",)),
    ("lfm2", ("tool_call_start",)),
    ("lfm2", ("tool_list_start",)),
    ("lfm2", ("List of tools: [",)),
    ("interns1", ("<|action_start|>",)),
    ("gigachat3", ("function_call<|role_sep|>",)),
    ("gigachat3", ("<|function_call|>",)),
    ("gigachat3", ("function call", "role_sep")),
    ("solar_open", ("tool_call:begin",)),
    ("nemotron_nano_v2", ("<TOOLCALL>",)),
    ("minimax-m1", ("<tool_calls>", "beginning_of_sentence")),
    ("jamba", ("<tool_calls>[",)),
    ("command_r_plus", ("Action:", "```json", "tool_name")),
    ("functionary_v3.2", (">>>${recipient}",)),
    ("firefunction_v2", ("' functools['",)),
    ("hunyuan", ("tool_sep", "arg_key")),
    ("glm45", ("<arg_key>",)),
    ("minicpm5", ('<function name="', "<param name=")),
    ("qwen3_coder", ("<function=", "<parameter=")),
    ("functionary_v3.1", ("<function=",)),
    ("mistral", ("[TOOL_CALLS]",)),
    ("olmo3", ("<function_calls>",)),
    ("phi4_mini_json", ("functools",)),
    ("granite-20b-fc", ("<function_call>",)),
    ("granite", ("<|tool_call|>",)),
    ("pythonic", ("[func_name1(",)),
    ("pythonic", ("python_start",)),
    ("qwen25", ("<tool_call>",)),
    ("jamba", ("<tool_calls>",)),
    ("llama3", ("python_tag",)),
    ("llama3", ('"parameters": dictionary of argument',)),
    ("llama3", ('"name": function name',)),
)
_PYTHONIC: Final = re.compile(r"\[\s*\w+\(\w+=[^)]*\)")


def detect(template: str) -> str | None:
    """The name of the format of a chat template, or None where it writes no tool calls.

    The template's text is searched for marks; nothing is rendered. `glm45` and `glm47`
    differ in newlines only and are told apart by them.
    """
    for name, marks in _RULES:
        if all(mark in template for mark in marks):
            if name == "glm45" and not re.search(r"</arg_key>\s*(\\n|\n)\s*<arg_value>", template):
                return "glm47"
            return name
    return "pythonic" if _PYTHONIC.search(template) else None

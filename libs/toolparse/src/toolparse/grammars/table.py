"""The table of formats: every name of sglang and vLLM, and the grammar that reads it."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from typing import Final

from toolparse.grammars.call_object import Keys
from toolparse.grammars.channels import Beam, Harmony, Inkling, Muse
from toolparse.grammars.either import Either
from toolparse.grammars.gemma import Gemma
from toolparse.grammars.grammar import Grammar
from toolparse.grammars.json_list import BareArray, BareObjects, Mistral, TaggedArray
from toolparse.grammars.kimi_k3 import KimiK3
from toolparse.grammars.minimax_m3 import MinimaxM3
from toolparse.grammars.pythonic import Pythonic
from toolparse.grammars.section_json import SectionJson, kimi_name
from toolparse.grammars.tagged_json import TaggedJson
from toolparse.grammars.tagged_pairs import TaggedPairs
from toolparse.grammars.variants import Forgetful, ListOrCalls, ObjectOrPairs, xml_text
from toolparse.scan.pairs import Shape


def _hermes() -> Grammar:
    return TaggedJson(b"<tool_call>", b"</tool_call>")


def _function_tags(section: str, framed: bool = True) -> Grammar:
    open_tag, close_tag = f"<{section}>".encode(), f"</{section}>".encode()
    return TaggedPairs(
        Shape(
            b"<function=", b">", b"<parameter=", b">", b"", b"</parameter>", b"</function>",
            open_tag, close_tag, framed, True, False,
        ),
        single=True,
    )  # fmt: skip


def _invokes(
    section: str,
    prefix: str = "",
    close_prefix: str | None = None,
    *,
    attributes: bool = False,
    json_body: bool = False,
    wrapper_prefix: str = "",
) -> Grammar:
    """`<PREFIXinvoke name="N"><PREFIXparameter name="K">V` inside `section`."""
    close = prefix if close_prefix is None else close_prefix
    return TaggedPairs(
        Shape(
            f'<{prefix}invoke name="'.encode(),
            b'">',
            f'<{prefix}parameter name="'.encode(),
            b'"' if attributes else b'">',
            b"",
            f"</{close}parameter>".encode(),
            f"</{close}invoke>".encode(),
            f"<{section}>".encode(),
            f"</{section}>".encode(),
            False,
            True,
            attributes,
        ),
        json_body=json_body,
        wrapper_prefix=wrapper_prefix.encode(),
    )


def _dsml(section: str, prefix: str = "｜DSML｜") -> Grammar:
    return _invokes(
        prefix + section, prefix, attributes=True, json_body=True, wrapper_prefix="<" + prefix
    )


def _dsml_spaced() -> Grammar:
    return _invokes(
        "｜DSML｜ calls",
        "｜DSML｜ ",
        attributes=True,
        json_body=True,
        wrapper_prefix="<｜DSML｜ ",
    )


def _argument_pairs(
    call: str = "tool_call",
    section: str = "",
    sep: str = "",
    suffix: str = "",
    line: str = "\n",
) -> Grammar:
    """`<tool_call>N<arg_key>K</arg_key><arg_value>V</arg_value></tool_call>`."""

    def tag(name: str, close: bool = False) -> bytes:
        return f"<{'/' if close else ''}{name}{suffix}>".encode() if name else b""

    return TaggedPairs(
        Shape(
            tag(call), tag(sep), tag("arg_key"), tag("arg_key", True), tag("arg_value"),
            tag("arg_value", True), tag(call, True), tag(section), tag(section, True),
            False, False, False,
        ),
        alone=False,
        line=line,
    )  # fmt: skip


def _k2_horizon() -> Grammar:
    return ObjectOrPairs(
        Shape(
            b"<ifm|tool_call>", b"", b"<ifm|arg_key>", b"</ifm|arg_key>", b"<ifm|arg_value>",
            b"</ifm|arg_value>", b"</ifm|tool_call>", b"<ifm|tool_calls>", b"</ifm|tool_calls>",
            False, False, False, b"<ifm|arg_type>", b"</ifm|arg_type>",
        ),
        alone=False,
        line="",
    )  # fmt: skip


def _minicpm() -> Grammar:
    return TaggedPairs(
        Shape(
            b'<function name="', b'">', b'<param name="', b'">', b"", b"</param>", b"</function>",
            b"", b"", False, False, False, b"", b"", True,
        ),
        decode=xml_text,
        line="",
    )  # fmt: skip


def _step3() -> Grammar:
    return TaggedPairs(
        Shape(
            '<｜tool_call_begin｜>function<｜tool_sep｜><steptml:invoke name="'.encode(),
            b'">',
            b'<steptml:parameter name="',
            b'">',
            b"",
            b"</steptml:parameter>",
            "</steptml:invoke><｜tool_call_end｜>".encode(),
            "<｜tool_calls_begin｜>".encode(),
            "<｜tool_calls_end｜>".encode(),
            False,
            True,
            False,
        )
    )


def _solar() -> Grammar:
    return TaggedPairs(
        Shape(
            b"<|tool_call:start|>", b"", b"<|tool_arg:start|>", b"<|tool_arg:value|>", b"",
            b"<|tool_arg:end|>", b"<|tool_call:end|>", b"", b"", False, False, False,
        ),
    )  # fmt: skip


def _deepseek(name_end: str, close: tuple[str, ...], kind: str = "") -> Grammar:
    openers = ("<｜tool▁calls▁begin｜>",)
    return SectionJson(
        tuple(opener.encode() for opener in openers),
        "<｜tool▁calls▁end｜>".encode(),
        f"<｜tool▁call▁begin｜>{kind}".encode(),
        name_end.encode(),
        tuple(tag.encode() for tag in close),
    )


def _kimi() -> Grammar:
    return SectionJson(
        (b"<|tool_calls_section_begin|>", b"<|tool_call_section_begin|>"),
        b"<|tool_calls_section_end|>",
        b"<|tool_call_begin|>",
        b"<|tool_call_argument_begin|>",
        (b"<|tool_call_end|>",),
        kimi_name,
    )


def _plamo() -> Grammar:
    def tag(name: str) -> bytes:
        return f"<|plamo:{name}:plamo|>".encode()

    return SectionJson(
        (tag("begin_tool_requests"),),
        tag("end_tool_requests"),
        tag("begin_tool_request") + tag("begin_tool_name"),
        tag("end_tool_name")
        + tag("begin_tool_arguments")
        + b"<|plamo:constrain|>json<|plamo:msg|>",
        (tag("end_tool_arguments"), tag("end_tool_request")),
    )


def _thinking(grammar: Grammar, open_tag: str, close_tag: str) -> Grammar:
    """The grammar with other tags around its reasoning."""
    grammar.thinks_between((open_tag.encode(), close_tag.encode()))
    return grammar


def _recognised() -> Grammar:
    """A declared response template is not in the text: the tags tell the grammar."""
    names = (
        "qwen3_coder",
        "kimi_k2",
        "deepseekv31",
        "deepseekv4",
        "minimax-m2",
        "gemma4",
        "mistral",
    )
    return Either(_hermes(), *(grammar_of(name) for name in names))


_BUILDERS: Final[dict[str, Callable[[], Grammar]]] = {
    "qwen25": _hermes,
    "trinity": lambda: Forgetful(_hermes()),
    "granite4": _hermes,
    "qwen3_coder": lambda: _function_tags("tool_call"),
    "mimo": lambda: _function_tags("tool_call", False),
    "seed_oss": lambda: _thinking(
        _function_tags("seed:tool_call"), "<seed:think>", "</seed:think>"
    ),
    "glm45": _argument_pairs,
    "glm47": lambda: _argument_pairs(line=""),
    "iquest_q1": lambda: _argument_pairs("iquest_tool_call", line=""),
    "hunyuan": lambda: Either(
        _argument_pairs("tool_call", "tool_calls", "tool_sep"),
        _argument_pairs("tool_call", "tool_calls", "tool_sep", ":opensource"),
    ),
    "solar_open2": lambda: _thinking(_solar(), "<|think:start|>", "<|think:end|>"),
    "k2_horizon": lambda: _thinking(_k2_horizon(), "<ifm|think>", "</ifm|think>"),
    "minimax-m2": lambda: _invokes("minimax:tool_call"),
    "minimax-m3": MinimaxM3,
    "dots": lambda: _invokes("dots_function_call", json_body=True),
    "minicpm5": _minicpm,
    "step3": _step3,
    "deepseekv32": lambda: _dsml("function_calls"),
    "deepseekv4": lambda: _dsml("tool_calls"),
    "deepseekv41": _dsml_spaced,
    "gigachat35": lambda: _dsml("tool_calls", "｜GCML｜"),
    "deepseekv3": lambda: _deepseek(
        "\n```json\n", ("```", "<｜tool▁call▁end｜>"), "function<｜tool▁sep｜>"
    ),
    "deepseekv31": lambda: _deepseek("<｜tool▁sep｜>", ("<｜tool▁call▁end｜>",)),
    "kimi_k2": _kimi,
    "kimi_k3": KimiK3,
    "plamo3": lambda: _thinking(
        _plamo(), "<|plamo:begin_think:plamo|>", "<|plamo:end_think:plamo|>"
    ),
    "gpt-oss": Harmony,
    "muse": Muse,
    "beam": Beam,
    "inkling": Inkling,
    "gemma4": lambda: Gemma(b"<|tool_call>", b"<tool_call|>", b'<|"|>'),
    "functiongemma": lambda: Gemma(
        b"<start_function_call>", b"<end_function_call>", b"<escape>"
    ),
    "mistral": lambda: _thinking(Mistral(), "[THINK]", "[/THINK]"),
    "llama3": lambda: BareObjects(b"<|python_tag|>"),
    "granite-20b-fc": lambda: BareObjects(b"<function_call>", b"<function_call>"),
    "pythonic": lambda: Pythonic(markup=(b"<|python_start|>", b"<|python_end|>")),
    "lfm2": lambda: ListOrCalls(b"<|tool_call_start|>", b"<|tool_call_end|>"),
    "olmo3": lambda: Pythonic(b"<function_calls>", b"</function_calls>", lines=True),
    "interns1": lambda: TaggedJson(
        b"<|action_start|> <|plugin|>",
        b"<|action_end|>",
        arguments=(b"parameters", b"arguments"),
        around=("\n", ""),
    ),
    "gigachat3": lambda: Either(
        TaggedJson(b"<|function_call|>", b"", around=("", "")),
        TaggedJson(b"<|message_sep|>\n\nfunction call<|role_sep|>\n", b"", around=("", "")),
    ),
    "longcat": lambda: TaggedJson(b"<longcat_tool_call>", b"</longcat_tool_call>"),
    "ernie45": _hermes,
    "apertus2509": lambda: TaggedArray(
        b"<|tools_prefix|>", b"<|tools_suffix|>", Keys(keyed=True)
    ),
    "cohere_command4": lambda: _thinking(
        TaggedArray(
            b"<|START_ACTION|>",
            b"<|END_ACTION|>",
            Keys(("tool_name",), ("parameters",), "tool_call_id"),
        ),
        "<|START_THINKING|>",
        "<|END_THINKING|>",
    ),
    "jamba": lambda: TaggedArray(b"<tool_calls>", b"</tool_calls>"),
    "granite": lambda: BareArray((b"<|tool_call|>", b"<tool_call>")),
    "phi4_mini_json": lambda: TaggedArray(b"functools"),
    "xlam": lambda: BareArray((b"[TOOL_CALLS]",)),
    "response_template": _recognised,
}  # fmt: skip

ALIASES: Final[dict[str, str]] = {
    "qwen": "qwen25",
    "hermes": "qwen25",
    "qwen3_json": "qwen25",
    "qwen3_xml": "qwen3_coder",
    "step3p5": "qwen3_coder",
    "step5": "qwen3_coder",
    "nanbeige": "qwen3_coder",
    "glm": "glm45",
    "ling3": "glm45",
    "spark25": "glm45",
    "poolside_v1": "glm45",
    "hy_v3": "hunyuan",
    "hy_v4": "hunyuan",
    "minimax_m2": "minimax-m2",
    "minimax_m3": "minimax-m3",
    "deepseek_v3": "deepseekv3",
    "deepseek_v31": "deepseekv31",
    "deepseek_v32": "deepseekv32",
    "deepseek_v4": "deepseekv4",
    "deepseek_v41": "deepseekv41",
    "openai": "gpt-oss",
    "muse_glimmer": "muse",
    "musespark1x": "muse",
    "llama3_json": "llama3",
    "llama4_json": "llama3",
    "llama4_pythonic": "pythonic",
    "apertus": "apertus2509",
    "cohere_command3": "cohere_command4",
    "internlm": "interns1",
    "hunyuan_a13b": "jamba",
    "hf": "response_template",
}

# The names of sglang 0.5.23 and of vLLM 0.33.
SGLANG_NAMES: Final = tuple(
    "apertus2509 beam cohere_command4 deepseekv3 deepseekv31 deepseekv32 deepseekv4 deepseekv41 "
    "dots glm glm45 glm47 gpt-oss k2_horizon kimi_k2 kimi_k3 lfm2 ling3 llama3 mimo minicpm5 "
    "mistral muse poolside_v1 pythonic qwen qwen25 qwen3_coder spark25 step3 step3p5 minimax-m2 "
    "minimax-m3 nanbeige trinity interns1 hermes hunyuan gigachat3 gigachat35 gemma4 inkling "
    "iquest_q1 response_template".split()
)
VLLM_NAMES: Final = tuple(
    "hermes qwen3_json qwen3_coder qwen3_xml step3p5 step5 mimo seed_oss llama3_json llama4_json "
    "pythonic llama4_pythonic lfm2 mistral deepseek_v3 deepseek_v31 deepseek_v32 deepseek_v4 "
    "deepseek_v41 glm45 ling3 poolside_v1 glm47 hy_v3 hy_v4 minimax_m2 minimax_m3 dots minicpm5 "
    "step3 kimi_k2 kimi_k3 openai muse_glimmer muse musespark1x beam gemma4 functiongemma inkling "
    "k2_horizon apertus cohere_command3 cohere_command4 internlm gigachat3 xlam jamba "
    "hunyuan_a13b granite granite-20b-fc granite4 ernie45 phi4_mini_json longcat olmo3 plamo3 "
    "hf solar_open2".split()
)

_BUILT: Final[dict[str, Grammar]] = {}


def formats() -> tuple[str, ...]:
    """The names that `parse` knows, sglang's and vLLM's spellings included."""
    return (*_BUILDERS, *ALIASES)


def grammar_of(name: str) -> Grammar:
    """The grammar of a format; ValueError names the nearest format."""
    grammar = _BUILT.get(name)
    if grammar is not None:
        return grammar
    builder = _BUILDERS.get(ALIASES.get(name, name)) if isinstance(name, str) else None
    if builder is None:
        near = difflib.get_close_matches(str(name), formats(), 1)
        hint = f"did you mean {near[0]!r}?" if near else "see toolparse.formats()."
        raise ValueError(f"unknown tool-call format {name!r}: {hint}")
    target = ALIASES.get(name, name)
    grammar = _BUILT.get(target) or _BUILT.setdefault(target, builder())
    _BUILT[name] = grammar
    return grammar

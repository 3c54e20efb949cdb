"""The table of formats: every name of sglang and vLLM, its grammar and its reasoning tags."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from typing import Final, NamedTuple

from toolparse.grammars.bare_objects import BareObjects
from toolparse.grammars.builders import (
    argument_pairs,
    deepseek,
    dots,
    dsml,
    dsml_spaced,
    function_tags,
    hermes,
    internlm,
    invokes,
    k2_horizon,
    kimi,
    minicpm,
    plamo,
    solar,
    step3,
)
from toolparse.grammars.call_object import Keys
from toolparse.grammars.channels import Beam, Harmony, Muse
from toolparse.grammars.either import Either
from toolparse.grammars.functionary import Functionary
from toolparse.grammars.gemma import Gemma
from toolparse.grammars.grammar import Grammar
from toolparse.grammars.inkling import Inkling
from toolparse.grammars.json_lines import ActionList, JsonLines
from toolparse.grammars.json_list import BareArray, Mistral, TaggedArray
from toolparse.grammars.kimi_k3 import KimiK3
from toolparse.grammars.minimax_m3 import MinimaxM3
from toolparse.grammars.pythonic import Pythonic
from toolparse.grammars.section_json import SectionJson
from toolparse.grammars.solar_open import SolarOpen
from toolparse.grammars.tagged_json import TaggedJson
from toolparse.grammars.variants import Forgetful, ListOrCalls

Pairs = tuple[tuple[str, str], ...]


class Format(NamedTuple):
    """A row of the table.

    think: the pairs of tags around reasoning, the first as the template writes it; channels:
    the grammar follows them itself, for they are the headers of its messages; texts: tags
    around visible text that are no content; stops: stop tokens beside those of all formats.
    """

    build: Callable[[], Grammar]
    think: Pairs
    texts: tuple[str, ...] = ()
    stops: tuple[str, ...] = ()
    channels: bool = False


# What most templates write.
THINK: Final = (("<think>", "</think>"),)


def _tag(name: str, first: str = "<", last: str = ">") -> tuple[str, str]:
    return f"{first}{name}{last}", f"{first}/{name}{last}"


def _hunyuan() -> Grammar:
    return Either(*(argument_pairs("tool_call", "tool_calls", "tool_sep", s) for s in _SUFFIXES))


# What Hunyuan's checkpoints end their tag names with.
_SUFFIXES: Final = ("", ":opensource", ":6124c78e")


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
    return Either(hermes(), *(grammar_of(name) for name in names))


FORMATS: Final[dict[str, Format]] = {
    "qwen25": Format(hermes, THINK),
    # Its tags are no reasoning: they are taken out, and a thought call runs.
    "trinity": Format(lambda: Forgetful(hermes(), (b"<think>", b"</think>")), ()),
    "granite4": Format(hermes, THINK),
    "ernie45": Format(hermes, THINK, ("<response>", "</response>")),
    "longcat": Format(
        lambda: TaggedJson(b"<longcat_tool_call>", b"</longcat_tool_call>"),
        (_tag("longcat_think"),),
        stops=("</longcat_s>",),
    ),
    "interns1": Format(lambda: internlm(" ", "", "\n"), THINK),
    "internlm": Format(lambda: internlm("", " ", "\n"), THINK),
    "gigachat3": Format(
        lambda: Either(
            TaggedJson(b"<|function_call|>", b"", around=("", "")),
            TaggedJson(b"<|message_sep|>\n\nfunction call<|role_sep|>\n", b"", around=("", "")),
        ),
        THINK,
    ),
    "qwen3_coder": Format(lambda: function_tags("tool_call"), THINK),
    "mimo": Format(lambda: function_tags("tool_call", False), THINK),
    "seed_oss": Format(
        lambda: function_tags("seed:tool_call"), (_tag("seed:think"),), stops=("<seed:eos>",)
    ),
    "glm45": Format(argument_pairs, THINK),
    "poolside_v1": Format(argument_pairs, THINK, stops=("</assistant>",)),
    "glm47": Format(lambda: argument_pairs(line=""), THINK),
    "iquest_q1": Format(lambda: argument_pairs("iquest_tool_call", line=""), THINK),
    "hunyuan": Format(
        _hunyuan,
        tuple(_tag(f"think{suffix}") for suffix in _SUFFIXES),
        stops=tuple(f"<｜hy_eos{suffix}｜>" for suffix in _SUFFIXES),
    ),
    "solar_open2": Format(solar, (("<|think:start|>", "<|think:end|>"),)),
    "k2_horizon": Format(
        k2_horizon, tuple(_tag(f"ifm|think{effort}") for effort in ("", "_fast", "_faster"))
    ),
    "minimax-m2": Format(lambda: invokes("minimax:tool_call"), THINK),
    "minimax-m3": Format(MinimaxM3, (_tag("mm:think"),)),
    "dots": Format(dots, THINK),
    "minicpm5": Format(minicpm, THINK),
    "step3": Format(step3, THINK),
    "deepseekv32": Format(lambda: dsml("function_calls"), THINK),
    "deepseekv4": Format(lambda: dsml("tool_calls"), THINK),
    "deepseekv41": Format(dsml_spaced, THINK),
    "gigachat35": Format(lambda: dsml("tool_calls", "｜GCML｜"), THINK),
    "deepseekv3": Format(
        lambda: deepseek("\n```json\n", ("```", "<｜tool▁call▁end｜>"), "function<｜tool▁sep｜>"),
        THINK,
    ),
    "deepseekv31": Format(lambda: deepseek("<｜tool▁sep｜>", ("<｜tool▁call▁end｜>",)), THINK),
    "kimi_k2": Format(kimi, THINK),
    "kimi_k3": Format(KimiK3, (("<|open|>think<|sep|>", "<|close|>think<|sep|>"),)),
    "plamo3": Format(plamo, (("<|plamo:begin_think:plamo|>", "<|plamo:end_think:plamo|>"),)),
    "gpt-oss": Format(Harmony, (("<|channel|>analysis<|message|>", "<|end|>"),), channels=True),
    "muse": Format(Muse, (("to=self<|message|>", "<|eom|>"),), channels=True),
    "beam": Format(Beam, (("<|channel|>analysis<|message|>", "<|end|>"),), channels=True),
    "inkling": Format(Inkling, (("<|content_thinking|>", "<|end_message|>"),), channels=True),
    "gemma4": Format(
        lambda: Gemma(b"<|tool_call>", b"<tool_call|>", b'<|"|>'),
        (("<|channel>thought\n", "<channel|>"), ("<|channel>thought", "<channel|>")),
    ),
    "functiongemma": Format(
        lambda: Gemma(b"<start_function_call>", b"<end_function_call>", b"<escape>"), THINK
    ),
    "mistral": Format(Mistral, (_tag("THINK", "[", "]"), *THINK)),
    "llama3": Format(lambda: BareObjects(b"<|python_tag|>"), THINK),
    "granite-20b-fc": Format(lambda: BareObjects(b"<function_call>", b"<function_call>"), THINK),
    "pythonic": Format(lambda: Pythonic(markup=(b"<|python_start|>", b"<|python_end|>")), THINK),
    "lfm2": Format(lambda: ListOrCalls(b"<|tool_call_start|>", b"<|tool_call_end|>"), THINK),
    "olmo3": Format(lambda: Pythonic(b"<function_calls>", b"</function_calls>", lines=True), THINK),
    "apertus2509": Format(
        lambda: TaggedArray(
            b"<|tools_prefix|>", b"<|tools_suffix|>", Keys(keyed=True), calls_in_thought=True
        ),
        (("<|inner_prefix|>", "<|inner_suffix|>"),),
    ),
    "cohere_command4": Format(
        lambda: TaggedArray(
            b"<|START_ACTION|>",
            b"<|END_ACTION|>",
            Keys(("tool_name",), ("parameters",), "tool_call_id"),
        ),
        (("<|START_THINKING|>", "<|END_THINKING|>"),),
        ("<|START_TEXT|>", "<|END_TEXT|>", "<|START_RESPONSE|>", "<|END_RESPONSE|>"),
    ),
    "jamba": Format(lambda: TaggedArray(b"<tool_calls>", b"</tool_calls>"), THINK),
    "granite": Format(lambda: BareArray((b"<|tool_call|>", b"<tool_call>")), THINK),
    "firefunction_v2": Format(lambda: TaggedArray(b" functools", also=(b"functools",)), THINK),
    "nemotron_nano_v2": Format(lambda: TaggedArray(b"<TOOLCALL>", b"</TOOLCALL>"), THINK),
    "minimax-m1": Format(
        lambda: JsonLines(b"<tool_calls>", b"</tool_calls>"),
        THINK,
        stops=("<end_of_sentence>",),
    ),
    "command_r_plus": Format(ActionList, THINK),
    "functionary_v3.1": Format(
        lambda: SectionJson((), b"", b"<function=", b">", (b"</function>",)), THINK
    ),
    "functionary_v3.2": Format(Functionary, ()),
    "solar_open": Format(SolarOpen, (("<|think|>", "<|end|>"),), channels=True),
    "phi4_mini_json": Format(lambda: TaggedArray(b"functools"), THINK),
    "xlam": Format(lambda: BareArray((b"[TOOL_CALLS]",), fences=True), THINK),
    "response_template": Format(_recognised, THINK),
}

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
    "hy_v3": "hunyuan",
    "hy_v4": "hunyuan",
    "minimax": "minimax-m1",
    "minimax_m1": "minimax-m1",
    "minimax_m2": "minimax-m2",
    "nemotron_json": "nemotron_nano_v2",
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
    return (*FORMATS, *ALIASES)


def reasoning_tags(name: str) -> Pairs:
    """The pairs of tags around the reasoning of a format, the template's own first."""
    return FORMATS[ALIASES.get(name, name)].think


def grammar_of(name: str) -> Grammar:
    """The grammar of a format; ValueError names the nearest format."""
    grammar = _BUILT.get(name)
    if grammar is not None:
        return grammar
    target = ALIASES.get(name, name) if isinstance(name, str) else ""
    if target not in FORMATS:
        near = difflib.get_close_matches(str(name), formats(), 1)
        hint = f"did you mean {near[0]!r}?" if near else "see toolparse.formats()."
        raise ValueError(f"unknown tool-call format {name!r}: {hint}")
    grammar = _BUILT.get(target) or _BUILT.setdefault(target, _built(FORMATS[target]))
    _BUILT[name] = grammar
    return grammar


def _built(row: Format) -> Grammar:
    grammar = row.build()
    think = () if row.channels else row.think
    grammar.framed(
        tuple((first.encode(), last.encode()) for first, last in think),
        tuple(tag.encode() for tag in row.texts),
        tuple(token.encode() for token in row.stops),
    )
    return grammar

"""Grammars from the parts of their family: the tags and the habits of each format."""

from __future__ import annotations

from toolparse.grammars.either import Either
from toolparse.grammars.grammar import Grammar
from toolparse.grammars.section_json import SectionJson, kimi_name
from toolparse.grammars.tagged_json import TaggedJson
from toolparse.grammars.tagged_pairs import TaggedPairs
from toolparse.grammars.variants import ObjectOrPairs, ObjectSection, xml_text
from toolparse.scan.pairs import Shape


def hermes() -> Grammar:
    return TaggedJson(b"<tool_call>", b"</tool_call>")


def function_tags(section: str, framed: bool = True) -> Grammar:
    open_tag, close_tag = f"<{section}>".encode(), f"</{section}>".encode()
    return TaggedPairs(
        Shape(
            b"<function=", b">", b"<parameter=", b">", b"", b"</parameter>", b"</function>",
            open_tag, close_tag, framed, True, False,
        ),
        single=True,
    )  # fmt: skip


def invokes(
    section: str,
    prefix: str = "",
    close_prefix: str | None = None,
    *,
    attributes: bool = False,
    json_body: bool = False,
    wrapper_prefix: str = "",
    kind: type[TaggedPairs] = TaggedPairs,
) -> Grammar:
    """`<PREFIXinvoke name="N"><PREFIXparameter name="K">V` inside `section`."""
    close = prefix if close_prefix is None else close_prefix
    return kind(
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
            # Behind a prefix of its own a tag is no text.
            not prefix,
            attributes,
        ),
        json_body=json_body,
        wrapper_prefix=wrapper_prefix.encode(),
    )


def dots() -> Grammar:
    return invokes("dots_function_call", json_body=True, kind=ObjectSection)


def dsml(section: str, prefix: str = "｜DSML｜") -> Grammar:
    return invokes(
        prefix + section, prefix, attributes=True, json_body=True, wrapper_prefix="<" + prefix
    )


def dsml_spaced() -> Grammar:
    return invokes(
        "｜DSML｜ calls",
        "｜DSML｜ ",
        attributes=True,
        json_body=True,
        wrapper_prefix="<｜DSML｜ ",
    )


def argument_pairs(
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


def k2_horizon() -> Grammar:
    return ObjectOrPairs(
        Shape(
            b"<ifm|tool_call>", b"", b"<ifm|arg_key>", b"</ifm|arg_key>", b"<ifm|arg_value>",
            b"</ifm|arg_value>", b"</ifm|tool_call>", b"<ifm|tool_calls>", b"</ifm|tool_calls>",
            False, False, False, b"<ifm|arg_type>", b"</ifm|arg_type>",
        ),
        alone=False,
        line="",
    )  # fmt: skip


def internlm(*between: str) -> Grammar:
    """`<|action_start|><|plugin|>` with what may stand between the two, the template's first."""
    return Either(
        *(
            TaggedJson(
                f"<|action_start|>{space}<|plugin|>".encode(),
                b"<|action_end|>",
                arguments=(b"parameters", b"arguments"),
                around=("\n", ""),
            )
            for space in between
        )
    )


def minicpm() -> Grammar:
    return TaggedPairs(
        Shape(
            b'<function name="', b'">', b'<param name="', b'">', b"", b"</param>", b"</function>",
            b"", b"", False, False, False, b"", b"", True,
        ),
        decode=xml_text,
        line="",
    )  # fmt: skip


def step3() -> Grammar:
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


def solar() -> Grammar:
    return TaggedPairs(
        Shape(
            b"<|tool_call:start|>", b"", b"<|tool_arg:start|>", b"<|tool_arg:value|>", b"",
            b"<|tool_arg:end|>", b"<|tool_call:end|>", b"", b"", False, False, False,
        ),
    )  # fmt: skip


def deepseek(name_end: str, close: tuple[str, ...], kind: str = "") -> Grammar:
    openers = ("<｜tool▁calls▁begin｜>",)
    return SectionJson(
        tuple(opener.encode() for opener in openers),
        "<｜tool▁calls▁end｜>".encode(),
        f"<｜tool▁call▁begin｜>{kind}".encode(),
        name_end.encode(),
        tuple(tag.encode() for tag in close),
    )


def kimi() -> Grammar:
    return SectionJson(
        (b"<|tool_calls_section_begin|>", b"<|tool_call_section_begin|>"),
        b"<|tool_calls_section_end|>",
        b"<|tool_call_begin|>",
        b"<|tool_call_argument_begin|>",
        (b"<|tool_call_end|>",),
        kimi_name,
    )


def plamo() -> Grammar:
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

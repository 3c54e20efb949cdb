"""Anthropic's Messages: a body becomes a request, a turn becomes an answer. No I/O."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from turnwise.gateway import fields
from turnwise.gateway.bodies import Bodies
from turnwise.gateway.handles import attach
from turnwise.gateway.requests import (
    MAX_MESSAGES,
    MAX_TOOLS,
    Answer,
    Head,
    Refusal,
    Request,
    Schema,
    function_tool,
    list_of,
    object_of,
    parts_text,
    positive,
    schema_of,
    strings_of,
    text_of,
    truth,
)

NAME = "messages"
_ERRORS = {401: "authentication_error", 413: "request_too_large", 429: "rate_limit_error"}
# Claude Code begins the system prompt of each request with a block that holds a new number, which
# no model is meant to read.
_BILLING = "x-anthropic-billing-header"


def read(body: Mapping[str, Any], bodies: Bodies) -> Request:
    """
    Args:
        body: Its fields, as `bodies` gives them.
        bodies: Of the same rollout.

    Raises:
        Refusal: saying which field, what was found and what is right.
    """
    own, ignored = fields.sort(body, "messages")
    messages = _system(body.get("system"))
    messages += bodies.history(body.get("messages"), "messages", _message)
    parse, demands = _tool_choice(body.get("tool_choice"))
    model = body.get("model")
    return Request(
        messages=messages,
        tools=bodies.tools(body.get("tools"), _tools),
        parse=parse,
        demands_call=demands,
        max_tokens=positive(body.get("max_tokens"), "max_tokens"),
        stream=truth(body.get("stream"), "stream"),
        model="policy" if model is None else text_of(model, "model"),
        stops=strings_of(body.get("stop_sequences"), "stop_sequences"),
        schema=_schema(body),
        overridden=own,
        ignored=ignored,
    )


def _schema(body: Mapping[str, Any]) -> Schema | None:
    config = object_of(body.get("output_config") or {}, "output_config")
    return schema_of(config.get("format"), "output_config.format") or schema_of(
        body.get("output_format"), "output_format"
    )


def _system(value: Any) -> list[dict[str, Any]]:
    if isinstance(value, list):
        value = [
            part
            for part in value
            if not (isinstance(part, dict) and str(part.get("text", "")).startswith(_BILLING))
        ]
    text = parts_text(value, "system", ("text",))
    return [{"role": "system", "content": text}] if text else []


def _message(message: Any, i: int) -> list[dict[str, Any]]:
    where = f"messages[{i}]"
    message = object_of(message, where)
    role, content = message.get("role"), message.get("content")
    if role not in ("user", "assistant", "system"):
        raise Refusal(
            400,
            f"{where}.role: {role!r:.40} is none of user, assistant, system",
            field=f"{where}.role",
        )
    if isinstance(content, str):
        return [{"role": role, "content": text_of(content, f"{where}.content")}]
    blocks = [
        (object_of(block, f"{where}.content[{k}]"), f"{where}.content[{k}]")
        for k, block in enumerate(list_of(content, f"{where}.content", MAX_MESSAGES))
    ]
    return [_assistant(blocks)] if role == "assistant" else _outside(role, blocks)


def _outside(role: str, blocks: list[tuple[dict[str, Any], str]]) -> list[dict[str, Any]]:
    """Results of calls are messages of their own, with the text between them where it stands."""
    made: list[dict[str, Any]] = []
    for block, where in blocks:
        if block.get("type") == "tool_result":
            content = parts_text(block.get("content"), f"{where}.content", ("text",))
            called = text_of(block.get("tool_use_id"), f"{where}.tool_use_id")
            made.append({"role": "tool", "content": content, "tool_call_id": called})
            continue
        text = parts_text([block], where, ("text",))
        if made and made[-1]["role"] == role:
            made[-1]["content"] += text
        else:
            made.append({"role": role, "content": text})
    return made or [{"role": role, "content": ""}]


def _assistant(blocks: list[tuple[dict[str, Any], str]]) -> dict[str, Any]:
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[dict[str, Any]] = []
    made: dict[str, Any] = {"role": "assistant", "content": ""}
    for block, where in blocks:
        if block.get("type") == "tool_use":
            arguments = object_of(block.get("input"), f"{where}.input")
            calls.append(
                {
                    "id": text_of(block.get("id"), f"{where}.id"),
                    "type": "function",
                    "function": {
                        "name": text_of(block.get("name"), f"{where}.name"),
                        "arguments": json.dumps(arguments),
                    },
                }
            )
        elif block.get("type") == "thinking":
            thoughts.append(text_of(block.get("thinking"), f"{where}.thinking"))
            if block.get("signature"):
                attach(made, text_of(block["signature"], f"{where}.signature"))
        else:
            texts.append(parts_text([block], where, ("text",)))
    made["content"] = "".join(texts)
    if thoughts:
        made["reasoning_content"] = "".join(thoughts)
    if calls:
        made["tool_calls"] = calls
    return made


def _tools(value: Any) -> list[dict[str, Any]]:
    given = list_of(value or [], "tools", MAX_TOOLS)
    return [_tool(tool, f"tools[{i}]") for i, tool in enumerate(given)]


def _tool(tool: Any, where: str) -> dict[str, Any]:
    tool = object_of(tool, where)
    if tool.get("type") not in (None, "custom"):
        raise Refusal(
            400,
            f"{where}: only tools of the client's own, found type {tool['type']!r:.40}",
            code="unsupported_value",
            field=where,
        )
    return function_tool(tool, where, "input_schema")


def _tool_choice(value: Any) -> tuple[bool, bool]:
    if value is None:
        return True, False
    choice = object_of(value, "tool_choice")
    if choice.get("disable_parallel_tool_use"):
        raise Refusal(
            400,
            "tool_choice.disable_parallel_tool_use can't be served exactly; leave it out",
            code="unsupported_parameter",
            field="tool_choice",
        )
    kind = choice.get("type")
    if kind not in ("auto", "any", "tool", "none"):
        raise Refusal(
            400, f"tool_choice.type: {kind!r:.40} is none of auto, any, tool, none",
            field="tool_choice",
        )  # fmt: skip
    return kind != "none", kind in ("any", "tool")


def answer(request: Request, found: Answer) -> dict[str, Any]:
    """The body of an answer that is not streamed."""
    return {
        **_head(request, found),
        "content": _blocks(found),
        "stop_reason": _stop_reason(found),
        "stop_sequence": found.stop,
        "usage": {"input_tokens": found.turn.prompt_tokens, "output_tokens": found.turn.tokens},
    }


def events(request: Request, found: Answer, sent: int = 0) -> Iterator[bytes]:
    """The same as server-sent events."""
    usage = {"input_tokens": found.turn.prompt_tokens, "output_tokens": 0}
    started: dict[str, Any] = {
        "content": [],
        "stop_reason": None,
        "stop_sequence": None,
        "usage": usage,
    }
    yield _event("message_start", message={**_head(request, found), **started})
    for index, block in enumerate(_blocks(found)):
        empty, deltas = _streamed(block)
        yield _event("content_block_start", index=index, content_block=empty)
        for delta in deltas:
            yield _event("content_block_delta", index=index, delta=delta)
        yield _event("content_block_stop", index=index)
    yield _event(
        "message_delta",
        delta={"stop_reason": _stop_reason(found), "stop_sequence": found.stop},
        usage={"output_tokens": found.turn.tokens},
    )
    yield _event("message_stop")


def refusal(error: Refusal) -> dict[str, Any]:
    """The body of a refusal."""
    other = "invalid_request_error" if error.status < 500 else "api_error"
    kind = _ERRORS.get(error.status, other)
    return {"type": "error", "error": {"type": kind, "message": str(error)}}


def refusal_event(error: Refusal, sent: int = 0) -> bytes:
    """A refusal within a stream."""
    return _event("error", error=refusal(error)["error"])


def waiting(request: Request, head: Head, sent: int) -> list[bytes]:
    """What a stream says while its turn is sampled; it may stand before the first event of it."""
    return [_event("ping")]


def _head(request: Request, found: Answer) -> dict[str, Any]:
    made = {"id": f"msg_{found.id}", "type": "message", "role": "assistant"}
    return {**made, "model": request.model}


def _blocks(found: Answer) -> list[dict[str, Any]]:
    blocks: list[dict[str, Any]] = []
    thought = found.message.get("reasoning_content")
    if thought:
        blocks.append({"type": "thinking", "thinking": thought, "signature": found.id})
    if found.message["content"]:
        blocks.append({"type": "text", "text": found.message["content"]})
    for call in found.calls:
        function = call["function"]
        arguments = json.loads(function["arguments"])
        used = {"id": call["id"], "name": function["name"], "input": arguments}
        blocks.append({"type": "tool_use", **used})
    return blocks


def _streamed(block: dict[str, Any]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """A block as it begins, and what is added to it."""
    if block["type"] == "text":
        return {**block, "text": ""}, [{"type": "text_delta", "text": block["text"]}]
    if block["type"] == "thinking":
        return {**block, "thinking": "", "signature": ""}, [
            {"type": "thinking_delta", "thinking": block["thinking"]},
            {"type": "signature_delta", "signature": block["signature"]},
        ]
    written = json.dumps(block["input"])
    return {**block, "input": {}}, [{"type": "input_json_delta", "partial_json": written}]


def _stop_reason(found: Answer) -> str:
    if found.cut:
        return "max_tokens"
    if found.stop is not None:
        return "stop_sequence"
    return "tool_use" if found.calls else "end_turn"


def _event(kind: str, **fields: Any) -> bytes:
    data = json.dumps({"type": kind, **fields})
    return f"event: {kind}\ndata: {data}\n\n".encode()

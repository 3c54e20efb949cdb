"""Chat Completions: a body becomes a request, a turn becomes an answer. No I/O."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from turnwise.gateway import fields
from turnwise.gateway.bodies import Bodies
from turnwise.gateway.requests import (
    MAX_TOOLS,
    Answer,
    Head,
    Refusal,
    Request,
    function_tool,
    list_of,
    object_of,
    parts_text,
    positive,
    schema_of,
    strings_of,
    text_in,
    text_of,
    truth,
)

NAME = "chat"
_ROLES = ("system", "developer", "user", "assistant", "tool")


def read(body: Mapping[str, Any], bodies: Bodies) -> Request:
    """
    Args:
        body: Its fields, as `bodies` gives them.
        bodies: Of the same rollout.

    Raises:
        Refusal: saying which field, what was found and what is right.
    """
    own, ignored = fields.sort(body, "chat")
    parse, demands = tool_choice(body.get("tool_choice"), ("required",))
    options = object_of(body.get("stream_options") or {}, "stream_options")
    limit = "max_completion_tokens" if body.get("max_completion_tokens") else "max_tokens"
    model = body.get("model")
    return Request(
        messages=bodies.history(body.get("messages"), "messages", _message),
        tools=bodies.tools(body.get("tools"), _tools),
        parse=parse,
        demands_call=demands,
        max_tokens=positive(body.get(limit), limit),
        stream=truth(body.get("stream"), "stream"),
        usage_event=truth(options.get("include_usage"), "stream_options.include_usage"),
        model="policy" if model is None else text_of(model, "model"),
        stops=strings_of(body.get("stop"), "stop"),
        schema=schema_of(body.get("response_format"), "response_format", "json_schema"),
        logprobs=truth(body.get("logprobs"), "logprobs"),
        overridden=own,
        ignored=ignored,
    )


def tool_choice(value: Any, demanding: tuple[str, ...]) -> tuple[bool, bool]:
    """Whether calls are read, and whether one is demanded."""
    if isinstance(value, dict):
        value = value.get("type") if value.get("type") in ("auto", "none") else demanding[0]
    if value in (None, "auto"):
        return True, False
    if value == "none":
        return False, False
    if value in demanding:
        return True, True
    raise Refusal(400, f"tool_choice: {value!r:.60} is none of auto, none, {demanding[0]} or an"
                  " object", field="tool_choice")  # fmt: skip


def _tools(value: Any) -> list[dict[str, Any]]:
    given = list_of(value or [], "tools", MAX_TOOLS)
    return [_tool(tool, i) for i, tool in enumerate(given)]


def _tool(tool: Any, i: int) -> dict[str, Any]:
    where = f"tools[{i}]"
    tool = object_of(tool, where)
    if tool.get("type", "function") != "function":
        raise Refusal(400, f"{where}: only tools of type function, found {tool['type']!r:.40}",
                      code="unsupported_value", field=where)  # fmt: skip
    function = object_of(tool.get("function"), f"{where}.function")
    return function_tool(function, f"{where}.function", "parameters")


def _message(message: Any, i: int) -> list[dict[str, Any]]:
    where = f"messages[{i}]"
    message = object_of(message, where)
    role = message.get("role")
    if role not in _ROLES:
        raise Refusal(400, f"{where}.role: {role!r:.40} is none of {', '.join(_ROLES)}",
                      field=f"{where}.role")  # fmt: skip
    kinds = ("text", "refusal") if role == "assistant" else ("text",)
    content = message.get("content")
    if type(content) is not str or not content.isascii():
        content = parts_text(content, f"{where}.content", kinds)
    made: dict[str, Any] = {"role": "system" if role == "developer" else role, "content": content}
    if role == "tool":
        made["tool_call_id"] = text_in(message, "tool_call_id", where)
    if role == "assistant":
        for name in ("reasoning_content", "reasoning"):
            if isinstance(message.get(name), str) and message[name]:
                made["reasoning_content"] = text_of(message[name], f"{where}.{name}")
        calls = list_of(message.get("tool_calls") or [], f"{where}.tool_calls", MAX_TOOLS)
        if calls:
            made["tool_calls"] = [
                _call(call, f"{where}.tool_calls[{k}]") for k, call in enumerate(calls)
            ]
    return [made]


def _call(call: Any, where: str) -> dict[str, Any]:
    call = object_of(call, where)
    function = object_of(call.get("function"), f"{where}.function")
    if isinstance(function.get("arguments"), dict):
        function = {**function, "arguments": json.dumps(function["arguments"])}
    return {
        "id": text_in(call, "id", where) if call.get("id") else "",
        "type": "function",
        "function": {
            "name": text_in(function, "name", f"{where}.function"),
            "arguments": text_in(function, "arguments", f"{where}.function"),
        },
    }


def answer(request: Request, found: Answer) -> dict[str, Any]:
    """The body of an answer that is not streamed."""
    message = {**found.message, "content": found.message["content"] or None, "refusal": None}
    if not found.calls:
        message["content"] = found.message["content"]
    choice = {
        "index": 0,
        "message": message,
        "logprobs": _logprobs(found),
        "finish_reason": _finish(found),
    }
    return {**_head(request, found, "chat.completion"), "choices": [choice], "usage": _usage(found)}


def events(request: Request, found: Answer, sent: int = 0) -> Iterator[bytes]:
    """The same as server-sent events.

    Args:
        sent: Events that the stream has told while it waited.
    """
    head = _head(request, found, "chat.completion.chunk")

    def chunk(delta: Mapping[str, Any], finish: str | None = None, logprobs: Any = None) -> bytes:
        choice = {"index": 0, "delta": delta, "logprobs": logprobs, "finish_reason": finish}
        return _event({**head, "choices": [choice]})

    yield chunk({"role": "assistant", "content": ""}, logprobs=_logprobs(found))
    if found.message.get("reasoning_content"):
        yield chunk({"reasoning_content": found.message["reasoning_content"]})
    if found.message["content"]:
        yield chunk({"content": found.message["content"]})
    for i, call in enumerate(found.calls):
        yield chunk({"tool_calls": [{"index": i, **call}]})
    yield chunk({}, _finish(found))
    if request.usage_event:
        yield _event({**head, "choices": [], "usage": _usage(found)})
    yield b"data: [DONE]\n\n"


def refusal(error: Refusal) -> dict[str, Any]:
    """The body of a refusal."""
    group = "invalid_request_error" if error.status < 500 else "server_error"
    return {
        "error": {
            "message": str(error),
            "type": group,
            "param": error.field or None,
            "code": error.code,
        }
    }


def refusal_event(error: Refusal, sent: int = 0) -> bytes:
    """A refusal within a stream."""
    return _event(refusal(error))


def waiting(request: Request, head: Head, sent: int) -> list[bytes]:
    """What a stream says while its turn is sampled: a comment, which clients pass over."""
    return [b": waiting for the policy\n\n"]


def _head(request: Request, found: Answer, what: str) -> dict[str, Any]:
    made = {"id": f"chatcmpl-{found.id}", "object": what, "created": found.created}
    return {**made, "model": request.model}


def _finish(found: Answer) -> str:
    if found.cut:
        return "length"
    return "tool_calls" if found.calls else "stop"


def _logprobs(found: Answer) -> dict[str, Any] | None:
    if not found.tokens:
        return None
    return {"content": [token.as_json() for token in found.tokens], "refusal": None}


def _usage(found: Answer) -> dict[str, int]:
    read, wrote = found.turn.prompt_tokens, found.turn.tokens
    return {"prompt_tokens": read, "completion_tokens": wrote, "total_tokens": read + wrote}


def _event(value: Mapping[str, Any]) -> bytes:
    return b"data: " + json.dumps(value).encode() + b"\n\n"

"""OpenAI's Responses: a body becomes a request, a turn becomes an answer. No I/O.

Neighbouring items of the assistant are one turn: its reasoning, its text and its calls. A function
of a namespace is shown to the model as `NAMESPACE__NAME`, and its calls say both names apart.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec
from msgspec import Raw

from turnwise.gateway import chat, fields
from turnwise.gateway.bodies import Bodies
from turnwise.gateway.handles import attach, of_item
from turnwise.gateway.requests import (
    MAX_MESSAGES,
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

NAME = "responses"
_LOGPROBS = "message.output_text.logprobs"
_TEXTS = ("input_text", "output_text", "text", "refusal", "summary_text", "reasoning_text")


def read(body: Mapping[str, Any], bodies: Bodies) -> Request:
    """
    Args:
        body: Its fields, as `bodies` gives them.
        bodies: Of the same rollout.

    Raises:
        Refusal: saying which field, what was found and what is right.
    """
    own, ignored = fields.sort(body, "responses")
    shape = object_of(body.get("text") or {}, "text")
    parse, demands = chat.tool_choice(body.get("tool_choice"), ("required",))
    model = body.get("model")
    return Request(
        messages=_messages(body, bodies),
        tools=bodies.tools(body.get("tools"), _tools),
        parse=parse,
        demands_call=demands,
        max_tokens=positive(body.get("max_output_tokens"), "max_output_tokens"),
        stream=truth(body.get("stream"), "stream"),
        model="policy" if model is None else text_of(model, "model"),
        stops=strings_of(body.get("stop"), "stop"),
        schema=schema_of(shape.get("format"), "text.format"),
        logprobs=_LOGPROBS in list_of(body.get("include") or [], "include", MAX_TOOLS),
        overridden=own,
        ignored=ignored,
        raw=body,
    )


def _messages(body: Mapping[str, Any], bodies: Bodies) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = []
    if body.get("instructions") is not None:
        told = text_of(body["instructions"], "instructions")
        messages.append({"role": "system", "content": told})
    given = body.get("input")
    if isinstance(given, str):
        return [*messages, {"role": "user", "content": text_of(given, "input")}]
    items = list_of(given, "input", MAX_MESSAGES)
    if not items:
        raise Refusal(400, "input is empty", field="input")
    return messages + bodies.messages(_groups(items), _grouped, {})


class _Kind(msgspec.Struct):
    type: str = "message"
    role: str = ""


def _groups(items: list[Any]) -> Iterator[tuple[int, Any]]:
    """Neighbouring items of the assistant together, which are one turn, each with the number of its
    first one. Items that are unread stay so."""
    if not all(type(item) is Raw for item in items):
        yield 0, items
        return
    group: list[Raw] = []
    first = 0
    for i, item in enumerate(items):
        try:
            kind = msgspec.json.decode(item, type=_Kind)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            kind = _Kind()
        inside = kind.type in ("function_call", "reasoning") or kind.role == "assistant"
        if group and not inside:
            yield first, _together(group)
            group = []
        if not inside:
            yield i, _together([item])
        elif not group:
            group, first = [item], i
        else:
            group.append(item)
    if group:
        yield first, _together(group)


def _together(items: list[Raw]) -> Raw:
    return Raw(b"[" + b",".join(items) + b"]")


def _grouped(items: list[Any], first: int) -> list[dict[str, Any]]:
    messages: list[dict[str, Any]] = []
    for i, item in enumerate(items, first):
        _add(messages, object_of(item, f"input[{i}]"), f"input[{i}]")
    return messages


def _add(messages: list[dict[str, Any]], item: dict[str, Any], where: str) -> None:
    kind = item.get("type", "message")
    if kind == "message":
        role = item.get("role")
        if role not in ("user", "system", "developer", "assistant"):
            raise Refusal(
                400,
                f"{where}.role: {role!r:.40} is none of user, system, developer, assistant",
                field=f"{where}.role",
            )
        text = parts_text(item.get("content"), f"{where}.content", _TEXTS)
        if role == "assistant":
            _turn(messages, of_item(item.get("id")))["content"] += text
        else:
            shown = "system" if role == "developer" else role
            messages.append({"role": shown, "content": text})
    elif kind == "function_call":
        name = text_of(item.get("name"), f"{where}.name")
        if item.get("namespace") is not None:
            name = _qualified(text_of(item["namespace"], f"{where}.namespace"), name)
        function = {
            "name": name,
            "arguments": text_of(item.get("arguments"), f"{where}.arguments"),
        }
        called = text_of(item.get("call_id"), f"{where}.call_id")
        call = {"id": called, "type": "function", "function": function}
        named = of_item(item.get("id"))
        wrong = named if f"call_{named}" != called else ""
        _turn(messages, wrong).setdefault("tool_calls", []).append(call)
    elif kind == "function_call_output":
        content = parts_text(item.get("output"), f"{where}.output", _TEXTS)
        called = text_of(item.get("call_id"), f"{where}.call_id")
        messages.append({"role": "tool", "content": content, "tool_call_id": called})
    elif kind == "reasoning":
        told = item.get("content") or item.get("summary")
        text = parts_text(told, f"{where}.summary", _TEXTS)
        named = of_item(item.get("id"))
        if item.get("encrypted_content"):
            named = text_of(item["encrypted_content"], f"{where}.encrypted_content")
        if text or named:
            turn = _turn(messages, named)
            if text:
                turn["reasoning_content"] = turn.get("reasoning_content", "") + text
    else:
        raise Refusal(
            400,
            f"{where}: an item of type {kind!r:.40} can't be shown to this model",
            code="unsupported_value",
            field=where,
        )


def _turn(messages: list[dict[str, Any]], handle: str) -> dict[str, Any]:
    """The turn of the assistant that the next item belongs to, which came with this name."""
    if not messages or messages[-1]["role"] != "assistant":
        messages.append({"role": "assistant", "content": ""})
    if handle:
        attach(messages[-1], handle)
    return messages[-1]


def _tools(value: Any) -> list[dict[str, Any]]:
    given = list_of(value or [], "tools", MAX_TOOLS)
    made = [one for i, tool in enumerate(given) for one in _functions(tool, f"tools[{i}]")]
    if any(tool["type"] == "namespace" for tool in given):
        counts = Counter(tool["function"]["name"] for tool in made)
        name, count = counts.most_common(1)[0] if counts else ("", 0)
        if count > 1:
            raise Refusal(
                400,
                f"tools: {count} functions are shown to this model as {name!r:.80}",
                code="unsupported_value",
                field="tools",
            )
    return list_of(made, "tools", MAX_TOOLS)


def _functions(tool: Any, where: str) -> list[dict[str, Any]]:
    """The function, or those of a namespace; what is said of that stands before its first one."""
    tool = object_of(tool, where)
    if tool.get("type") != "namespace":
        return [_function(tool, where, "function or namespace")]
    namespace = text_in(tool, "name", where)
    told = text_of(tool.get("description") or "", f"{where}.description")
    made = []
    for k, inner in enumerate(list_of(tool.get("tools"), f"{where}.tools", MAX_TOOLS)):
        place = f"{where}.tools[{k}]"
        one = _function(object_of(inner, place), place, "function")
        function = one["function"]
        function["name"] = _qualified(namespace, function["name"])
        if told and not k:
            function["description"] = f"{told}\n\n{function.get('description', '')}".rstrip()
        made.append(one)
    return made


def _function(tool: dict[str, Any], where: str, kinds: str) -> dict[str, Any]:
    if tool.get("type") != "function":
        raise Refusal(
            400,
            f"{where}: only tools of type {kinds}, found {tool.get('type')!r:.40}",
            code="unsupported_value",
            field=where,
        )
    return function_tool(tool, where, "parameters")


def _qualified(namespace: str, name: str) -> str:
    return f"{namespace}__{name}"


def _apart(request: Request) -> dict[str, tuple[str, str]]:
    """Namespace and name of each function that stands in one, by the name that the model knows."""
    return {
        _qualified(tool["name"], inner["name"]): (tool["name"], inner["name"])
        for tool in request.raw.get("tools") or ()
        if tool["type"] == "namespace"
        for inner in tool["tools"]
    }


def answer(request: Request, found: Answer) -> dict[str, Any]:
    """The body of an answer that is not streamed."""
    read, wrote = found.turn.prompt_tokens, found.turn.tokens
    status = "incomplete" if found.cut else "completed"
    return {
        **_head(request, found),
        "status": status,
        "incomplete_details": {"reason": "max_output_tokens"} if found.cut else None,
        "output": _items(request, found, status),
        "usage": {
            "input_tokens": read,
            "input_tokens_details": {"cached_tokens": 0},
            "output_tokens": wrote,
            "output_tokens_details": {"reasoning_tokens": 0},
            "total_tokens": read + wrote,
        },
    }


def events(request: Request, found: Answer, sent: int = 0) -> Iterator[bytes]:
    """The same as server-sent events.

    Args:
        sent: Events that the stream has told while it waited.
    """
    whole = answer(request, found)
    made = [] if sent else _begun(request, found)
    for index, item in enumerate(whole["output"]):
        made += _item_events(index, item)
    made.append({"type": f"response.{whole['status']}", "response": whole})
    yield from _numbered(made, sent)


def waiting(request: Request, head: Head, sent: int) -> list[bytes]:
    """What a stream says while its turn is sampled: that it is in progress, again and again. A
    comment would not do: Codex counts events alone, and gives up after 300 s without one."""
    begun = _begun(request, head)
    return [*_numbered(begun[1:] if sent else begun, sent)]


def _begun(request: Request, head: Head) -> list[dict[str, Any]]:
    begun = {**_head(request, head), "status": "in_progress", "incomplete_details": None}
    begun |= {"output": [], "usage": None}
    return [{"type": f"response.{one}", "response": begun} for one in ("created", "in_progress")]


def _numbered(made: list[dict[str, Any]], first: int) -> Iterator[bytes]:
    for number, event in enumerate(made, first):
        yield _event({**event, "sequence_number": number})


def _item_events(index: int, item: dict[str, Any]) -> list[dict[str, Any]]:
    place = {"output_index": index, "item_id": item["id"]}
    inside: list[dict[str, Any]] = []
    if item["type"] == "function_call":
        empty = {**item, "arguments": "", "status": "in_progress"}
        name = "response.function_call_arguments"
        written = item["arguments"]
        inside = [
            {"type": f"{name}.delta", **place, "delta": written},
            {"type": f"{name}.done", **place, "arguments": written, "name": item["name"]},
        ]
    elif item["type"] == "message":
        empty = {**item, "content": [], "status": "in_progress"}
        (part,) = item["content"]
        place = {**place, "content_index": 0}
        said = {**place, "logprobs": part["logprobs"]}
        inside = [
            {"type": "response.content_part.added", **place, "part": {**part, "text": ""}},
            {"type": "response.output_text.delta", **said, "delta": part["text"]},
            {"type": "response.output_text.done", **said, "text": part["text"]},
            {"type": "response.content_part.done", **place, "part": part},
        ]
    else:
        empty = {**item, "summary": []}
        (part,) = item["summary"]
        place = {**place, "summary_index": 0}
        name = "response.reasoning_summary"
        inside = [
            {"type": f"{name}_part.added", **place, "part": {**part, "text": ""}},
            {"type": f"{name}_text.delta", **place, "delta": part["text"]},
            {"type": f"{name}_text.done", **place, "text": part["text"]},
            {"type": f"{name}_part.done", **place, "part": part},
        ]
    return [
        {"type": "response.output_item.added", "output_index": index, "item": empty},
        *inside,
        {"type": "response.output_item.done", "output_index": index, "item": item},
    ]


def refusal(error: Refusal) -> dict[str, Any]:
    """The body of a refusal."""
    return chat.refusal(error)


def refusal_event(error: Refusal, sent: int = 0) -> bytes:
    """A refusal within a stream."""
    told = {"code": error.code, "message": str(error), "param": error.field or None}
    return _event({"type": "error", **told, "sequence_number": sent})


def _head(request: Request, found: Head) -> dict[str, Any]:
    raw = request.raw
    return {
        "id": f"resp_{found.id}",
        "object": "response",
        "created_at": found.created,
        "model": request.model,
        "error": None,
        "instructions": raw.get("instructions"),
        "metadata": raw.get("metadata") or {},
        "parallel_tool_calls": True,
        "temperature": None,
        "tool_choice": raw.get("tool_choice") or "auto",
        "tools": raw.get("tools") or [],
        "top_p": None,
    }


def _items(request: Request, found: Answer, status: str) -> list[dict[str, Any]]:
    items: list[dict[str, Any]] = []
    thought = found.message.get("reasoning_content")
    if thought:
        summary = [{"type": "summary_text", "text": thought}]
        item = {"id": f"rs_{found.id}", "type": "reasoning", "summary": summary}
        items.append({**item, "encrypted_content": found.id})
    text = found.message["content"]
    if text or not found.calls:
        scores = [token.as_json() for token in found.tokens]
        part = {"type": "output_text", "text": text, "annotations": [], "logprobs": scores}
        said = {"role": "assistant", "status": status, "content": [part]}
        items.append({"id": f"msg_{found.id}", "type": "message", **said})
    apart = _apart(request)
    for call in found.calls:
        named = {"id": f"fc_{call['id'][5:]}", "type": "function_call", "call_id": call["id"]}
        item = {**named, **call["function"], "status": "completed"}
        if item["name"] in apart:
            item["namespace"], item["name"] = apart[item["name"]]
        items.append(item)
    return items


def _event(value: Mapping[str, Any]) -> bytes:
    data = json.dumps(value)
    return f"event: {value['type']}\ndata: {data}\n\n".encode()

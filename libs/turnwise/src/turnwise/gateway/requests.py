"""A request and a refusal, whatever dialect they are written in."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from turnwise.conversation import Turn
from turnwise.engine import Completion

MAX_MESSAGES = 4096
MAX_TOOLS = 512
MAX_STOPS = 16


class Refusal(Exception):
    """What a client is told in place of a turn.

    Attributes:
        status: Of HTTP.
        code: For programs, such as `context_length_exceeded`.
        field: The field of the body that is refused, if it is one.
        retry_after_s: When the same request may be sent again; None where no retry can mend it.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        code: str = "invalid_request",
        field: str = "",
        retry_after_s: int | None = None,
    ) -> None:
        super().__init__(message)
        self.status, self.code, self.field = status, code, field
        self.retry_after_s = retry_after_s

    @property
    def headers(self) -> dict[str, str]:
        """What the clients' libraries obey."""
        if self.retry_after_s is None:
            return {"x-should-retry": "false"}
        return {"x-should-retry": "true", "Retry-After": str(self.retry_after_s)}


@dataclass(frozen=True, slots=True)
class Schema:
    """A grammar that an answer is asked to keep: the field that asks, and JSON Schema as text."""

    where: str
    text: str


@dataclass(frozen=True, slots=True)
class Token:
    """A sampled token as a client sees it.

    Attributes:
        text: Of it alone; a part of a character reads U+FFFD.
        logprob: As recorded.
    """

    text: str
    logprob: float

    def as_json(self) -> dict[str, Any]:
        """In the form of Chat Completions, which Responses shares."""
        whole = None if "\ufffd" in self.text else list(self.text.encode())
        return {"token": self.text, "logprob": self.logprob, "bytes": whole, "top_logprobs": []}


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What a client asks for.

    Attributes:
        messages: The whole history, in the form of the Chat Completions API.
        tools: Function schemas, in the client's order and spelling.
        parse: Whether calls are read in the turn.
        demands_call: The client asked for a call, which is not enforced.
        max_tokens: The client's bound; None where it gives none.
        stops: Strings before the first of which the answer ends.
        schema: A grammar that the answer is asked to keep.
        logprobs: Whether the answer says the log-probs.
        stream: Whether the answer is sent as events.
        usage_event: Whether a stream ends with the counts (Chat Completions).
        model: The name that is answered with.
        overridden: Fields whose values the run's own go before.
        ignored: Fields that say nothing to a policy.
        raw: The body, for what an answer repeats.
    """

    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]]
    parse: bool = True
    demands_call: bool = False
    max_tokens: int | None = None
    stops: tuple[str, ...] = ()
    schema: Schema | None = None
    logprobs: bool = False
    stream: bool = False
    usage_event: bool = False
    model: str = "policy"
    overridden: tuple[str, ...] = ()
    ignored: tuple[str, ...] = ()
    raw: Mapping[str, Any] = field(default_factory=dict)

    @property
    def key(self) -> tuple[Any, ...]:
        """What makes two requests the same beside history and tools."""
        return self.parse, self.max_tokens, self.stops, self.schema


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """What is known of an answer before it is sampled.

    Attributes:
        id: Unique in the rollout, the same however often the turn is sent.
        created: Seconds since the epoch.
    """

    id: str
    created: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer(Head):
    """A turn as it is sent.

    Attributes:
        turn: As it was read.
        message: In the form of the Chat Completions API, its calls with ids.
        stop: The stop string that it ended before.
        completion: What was sampled of it.
        tokens: What was sampled, where the request asks for log-probs.
    """

    turn: Turn
    message: Mapping[str, Any]
    stop: str | None = None
    completion: Completion = field(compare=False, repr=False)
    tokens: tuple[Token, ...] = ()

    @property
    def calls(self) -> list[dict[str, Any]]:
        """`id` and `function` with `name` and `arguments`, JSON."""
        return list(self.message.get("tool_calls") or ())

    @property
    def cut(self) -> bool:
        """Whether the turn reached a bound."""
        return self.turn.finish == "length"


def object_of(value: Any, where: str) -> dict[str, Any]:
    """A JSON object, or a Refusal."""
    if not isinstance(value, dict):
        raise Refusal(400, f"{where} must be an object, found {kind(value)}", field=where)
    return value


def list_of(value: Any, where: str, limit: int) -> list[Any]:
    """A JSON array of at most `limit`, or a Refusal."""
    if not isinstance(value, list):
        raise Refusal(400, f"{where} must be an array, found {kind(value)}", field=where)
    if len(value) > limit:
        raise Refusal(400, f"{where} has {len(value)} entries, at most {limit}", field=where)
    return value


def text_of(value: Any, where: str) -> str:
    """A string, or a Refusal; one that UTF-8 can't say is refused as well."""
    if not isinstance(value, str):
        raise Refusal(400, f"{where} must be a string, found {kind(value)}", field=where)
    if value.isascii():
        return value
    try:
        value.encode()
    except UnicodeEncodeError:
        raise Refusal(400, f"{where} holds half a surrogate pair", field=where) from None
    return value


def text_in(holder: Mapping[str, Any], name: str, where: str) -> str:
    """The string that an object holds under a name, or a Refusal."""
    value = holder.get(name)
    if type(value) is str and value.isascii():
        return value
    return text_of(value, f"{where}.{name}")


def positive(value: Any, where: str) -> int | None:
    """A whole number above 0, None for none, or a Refusal."""
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise Refusal(400, f"{where} must be a whole number above 0, found {value!r:.40}",
                      field=where)  # fmt: skip
    return value


def truth(value: Any, where: str) -> bool:
    """A truth value, False for none, or a Refusal."""
    if value is None or isinstance(value, bool):
        return bool(value)
    raise Refusal(400, f"{where} must be true or false, found {kind(value)}", field=where)


def parts_text(content: Any, where: str, kinds: tuple[str, ...]) -> str:
    """Content as one text: a string, or parts of these kinds that hold `text`."""
    if content is None:
        return ""
    if isinstance(content, str):
        return text_of(content, where)
    texts = []
    for i, part in enumerate(list_of(content, where, MAX_MESSAGES)):
        name = f"{where}[{i}]"
        part = object_of(part, name)
        if part.get("type") not in kinds:
            raise Refusal(
                400,
                f"{name}: a part of type {part.get('type')!r:.40} can't be shown to this model,"
                f" only {' or '.join(kinds)}",
                code="unsupported_value",
                field=name,
            )
        texts.append(text_of(part.get("text", part.get("refusal")), f"{name}.text"))
    return "".join(texts)


def function_tool(given: Mapping[str, Any], where: str, schema: str) -> dict[str, Any]:
    """A function schema in the form of the Chat Completions API; `schema` is the key of its
    parameters in the one that was given."""
    function: dict[str, Any] = {"name": text_in(given, "name", where)}
    if given.get("description") is not None:
        function["description"] = text_in(given, "description", where)
    if given.get(schema) is not None:
        function["parameters"] = object_of(given[schema], f"{where}.{schema}")
    return {"type": "function", "function": function}


def strings_of(value: Any, where: str) -> tuple[str, ...]:
    """Stop strings: one, several, or none for None; or a Refusal."""
    given = [value] if isinstance(value, str) else list_of(value or [], where, MAX_STOPS)
    for one in given:
        if not text_of(one, where):
            raise Refusal(400, f"{where} holds an empty string, which every text has", field=where)
    return tuple(given)


def schema_of(value: Any, where: str, inner: str = "") -> Schema | None:
    """What an answer has to look like, None for any text, or a Refusal.

    Args:
        value: `{"type": "json_schema", ...}`, with the schema under `inner` and there or here
            under `schema`; `json_object`, `text`, or None.
        where: The name of the field.
    """
    if value is None:
        return None
    shape = object_of(value, where)
    if shape.get("type") == "text":
        return None
    if shape.get("type") == "json_object":
        return Schema(where, '{"type": "object"}')
    if shape.get("type") != "json_schema":
        raise Refusal(400, f"{where}.type: {shape.get('type')!r:.40} is none of text, json_object,"
                      " json_schema", field=where)  # fmt: skip
    if inner:
        shape, where = object_of(shape.get(inner), f"{where}.{inner}"), f"{where}.{inner}"
    return Schema(where, json.dumps(object_of(shape.get("schema"), f"{where}.schema")))


def kind(value: Any) -> str:
    """The JSON type of a value, for messages."""
    names = {dict: "an object", list: "an array", str: "a string", bool: "a truth value"}
    return "null" if value is None else names.get(type(value), "a number")

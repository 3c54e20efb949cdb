"""ToolOrchestra's rows as they are published, read into rows of ours.

| published                       | ours                                                          |
|---------------------------------|---------------------------------------------------------------|
| `problem` (or question, prompt) | `prompt`                                                      |
| `answer` (or label)             | `label`                                                       |
| `metadata.eid`                  | `metadata.eid`, and the task's id                             |
| `metadata.model_mapping`        | `metadata.experts`: a role each; its tool is told by its name |
| `metadata.tool_pricing`         | their prices, in US dollars per million tokens                |
| `metadata.pref_vec`             | `metadata.preferences`                                        |
| `metadata.category`             | `qa` is a question, `func_call` a customer (`conversations`)  |

FRAMES (`Prompt`, `Answer`) and HLE (`question`, `answer`, `image`) are read as they are published;
keys are read in any case. What stands in `metadata` may stand at the top of a row as well, and be
JSON written as a string.
Weights of cost and latency are published with either sign for the same wish; ours say what a saving
is worth and are written without it. Weights of models hold for all of their roles; weights of
features that a row does not have are left out. Both are counted.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from turnwise.answers.labels import read_answer
from turnwise.config import ConfigError
from turnwise.rows.checks import check_prompt, shown
from turnwise.rows.files import Record, records

from apps.trainers.toolorchestra.data.conversations import CATEGORY, customer, is_played
from apps.trainers.toolorchestra.tables import (
    ACCURACY,
    COST,
    LATENCY,
    QUESTION_TOOLS,
    ToolName,
    read_experts,
    read_preferences,
)

QUESTION_KEYS = ("problem", "question", "prompt")
ANSWER_KEYS = ("answer", "label")
TOOLS: Mapping[str, ToolName] = {
    "search": "search",
    "reasoner": "enhance_reasoning",
    "answer": "answer",
    "expert": "call_expert",
}
"""The tool of a role, by what its name begins with."""
READ_PRICES = ("input_tokens_per_million", "input", "in", "prompt", "read_price")
WRITE_PRICES = ("output_tokens_per_million", "output", "out", "completion", "write_price")
PER_TOKEN = 1e-3
"""US dollars: a price per million tokens below it is one per token."""


@dataclass(frozen=True, slots=True)
class Row:
    """A row of ours.

    Attributes:
        where: `file:3` (a line) or `file, row 3`, counted from 1.
        id: The task's, as published; "" where it has none.
        domain: Of the task, what stands before `____` in its eid.
    """

    where: str
    id: str
    domain: str
    prompt: str
    label: str
    metadata: Mapping[str, Any]


@dataclass(slots=True)
class Found:
    """What a file has beside the rows that are written.

    Attributes:
        read: Its rows.
        calls: Conversations that are written, by domain.
        foreign: Task ids of conversations in domains that exist in the file alone, by domain.
        customers: Models that rows name for the customer.
        turned: Negative weights of cost and latency.
        dropped_weights: Weights of no feature, by name.
        unplayed: Lines of tables with models that the run does not have, by model.
        unanswered: Rows that nobody answers without those.
        pictures: Rows with a picture, which no expert is shown.
    """

    read: int = 0
    calls: Counter[str] = field(default_factory=Counter)
    foreign: dict[str, list[str]] = field(default_factory=dict)
    customers: Counter[str] = field(default_factory=Counter)
    turned: int = 0
    dropped_weights: Counter[str] = field(default_factory=Counter)
    unplayed: Counter[str] = field(default_factory=Counter)
    unanswered: int = 0
    pictures: int = 0


def read_rows(path: Path, found: Found, models: Sequence[str] = ()) -> Iterator[Row]:
    """Questions and customers of a `.jsonl` or `.parquet` file; `found` counts what else it has.

    Args:
        models: Those that the run has; all where empty.

    Raises:
        ConfigError: naming the file and line or row, what was found and what is expected.
    """
    for record in records(path):
        found.read += 1
        row = _row(record, found, models)
        if row is not None:
            yield row


def _row(record: Record, found: Found, models: Sequence[str]) -> Row | None:
    where = record.where
    values = {str(key).lower(): value for key, value in record.fields.items()}
    inner = _parsed(values.get("metadata") or {}, f"{where}: metadata")
    if not isinstance(inner, Mapping):
        raise ConfigError(f"{where}: metadata: expected an object, found {shown(inner)}")
    facts = {**values, **inner}
    eid = str(facts.get("eid") or facts.get("id") or "")
    domain = str(facts.get("domain") or eid.partition("____")[0] if "____" in eid else "")
    if facts.get("category", "qa") == CATEGORY:
        return _customer(facts, eid, domain, where, found, models)
    if values.get("image"):
        found.pictures += 1
        return None
    key = next((one for one in QUESTION_KEYS if values.get(one)), None)
    if key is None:
        raise ConfigError(f"{where}: has none of {', '.join(QUESTION_KEYS)}")
    prompt = check_prompt(_parsed(values[key], where), where, key)
    if not isinstance(prompt, str):
        prompt = str(prompt[-1].get("content") or "")
    label_key = next((one for one in ANSWER_KEYS if values.get(one) not in (None, "")), "answer")
    label = read_answer(values.get(label_key), where, label_key)
    metadata: dict[str, Any] = {"id": eid} if eid else {}
    if facts.get("eid"):
        metadata["eid"] = eid
    table = _table(facts, where, found, models)
    if table and not any(one["tool"] == "answer" for one in table["experts"]):
        found.unanswered += 1
        return None
    return Row(where, eid, domain, prompt, label, {**metadata, **table})


def _customer(
    facts: Mapping[str, Any], eid: str, domain: str, where: str, found: Found, models: Sequence[str]
) -> Row | None:
    if not is_played(domain):
        found.foreign.setdefault(domain or "without a domain", []).append(eid)
        return None
    task_id = eid.partition("____")[2] or eid
    metadata = customer(domain, task_id, _parsed(facts.get("example"), where), where)
    table = _table(facts, where, found, models, tools=("call_expert",))
    if table and not table["experts"]:
        found.unanswered += 1
        return None
    found.calls[domain] += 1
    if facts.get("user_llm"):
        found.customers[str(facts["user_llm"])] += 1
    name = f"{domain}____{task_id}"
    return Row(where, name, domain, f"{domain} {task_id}", "", {"eid": name, **metadata, **table})


def _table(
    facts: Mapping[str, Any],
    where: str,
    found: Found,
    models: Sequence[str],
    tools: Sequence[ToolName] = QUESTION_TOOLS,
) -> dict[str, Any]:
    """Experts of these tools and preferences, of a row that has any."""
    mapping = _parsed(facts.get("model_mapping"), where)
    if not mapping:
        return {}
    if not isinstance(mapping, Mapping):
        raise ConfigError(f"{where}: model_mapping: expected roles, found {shown(mapping)}")
    pricing = _parsed(facts.get("tool_pricing") or {}, where)
    rows = [
        {"role": role, "tool": tool, "model": str(model), **_prices(pricing, str(model), where)}
        for role, model in mapping.items()
        if (tool := _tool(str(role), where)) in tools
    ]
    found.unplayed.update(one["model"] for one in rows if models and one["model"] not in models)
    rows = [one for one in rows if not models or one["model"] in models]
    experts = read_experts(rows, f"{where}: model_mapping")
    weights = _parsed(facts.get("pref_vec") or {}, where)
    if not isinstance(weights, Mapping):
        raise ConfigError(f"{where}: pref_vec: expected weights, found {shown(weights)}")
    wishes: dict[str, float] = {}
    for name, weight in weights.items():
        if isinstance(weight, bool) or not isinstance(weight, int | float):
            raise ConfigError(f"{where}: pref_vec.{name}: expected a number, found {weight!r:.60}")
        if name in (COST, LATENCY) and weight < 0:
            found.turned += 1
            weight = -weight
        named = [one.role for one in experts if name in (one.role, one.model)]
        if name in (ACCURACY, COST, LATENCY):
            named = [name]
        found.dropped_weights[str(name)] += not named and bool(weight)
        wishes |= dict.fromkeys(named, float(weight))
    kept = {name: weight for name, weight in wishes.items() if weight}
    return {
        "experts": rows,
        "preferences": read_preferences(kept, experts, f"{where}: pref_vec"),
    }


def _tool(role: str, where: str) -> ToolName:
    for start, tool in TOOLS.items():
        if role.startswith(start):
            return tool
    known = ", ".join(f"{start}-1" for start in TOOLS)
    raise ConfigError(f"{where}: model_mapping.{role}: is of no tool; roles are like {known}")


def _prices(pricing: Any, model: str, where: str) -> dict[str, float]:
    named = pricing.get(model) if isinstance(pricing, Mapping) else None
    if not isinstance(named, Mapping):
        raise ConfigError(f"{where}: tool_pricing.{model}: is needed, found {shown(named)}")
    return {
        "read_price": _price(named, READ_PRICES, f"{where}: tool_pricing.{model}"),
        "write_price": _price(named, WRITE_PRICES, f"{where}: tool_pricing.{model}"),
    }


def _price(named: Mapping[str, Any], keys: tuple[str, ...], where: str) -> float:
    key = next((one for one in keys if one in named), None)
    value = named.get(key) if key is not None else None
    if isinstance(value, bool) or not isinstance(value, int | float) or value < 0:
        raise ConfigError(f"{where}: expected a price under one of {', '.join(keys)}")
    return float(value) * 1e6 if 0 < value < PER_TOKEN else float(value)


def _parsed(value: Any, where: str) -> Any:
    """The value; of JSON that was written as a string the JSON."""
    if isinstance(value, str) and value.lstrip().startswith(("{", "[")):
        try:
            return json.loads(value)
        except ValueError as error:
            raise ConfigError(f"{where}: no valid JSON: {error}") from None
    return value

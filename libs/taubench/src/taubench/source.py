"""Data, tasks, tools, wiki and rules of tau-bench, out of the package tau-trait.

tau-trait 0.1.1 carries upstream's files, but importing it imports a user simulator that needs
litellm, openai and a credential, and its test splits and user tables hold more than upstream's.

1. The package is located, never imported. The files wanted run under a private `__import__`
   that knows `tau_trait.types`, `tau_trait.envs.tool` and the tools of the two domains and
   refuses every other module of the package. `sys.modules` is not touched.
2. Modules run under the names they have upstream (`tau_bench.envs...`), because Python puts the
   module's name into some error messages that a tool returns.
3. Test splits are cut to upstream's length and the users that upstream lacks are dropped. What
   remains is upstream's, which a test pins by content hashes.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Protocol, cast

from taubench.package import Distribution, Package
from taubench.package import SourceError as SourceError
from taubench.task import Action

TAU_TRAIT = Distribution("tau-trait", "0.1.1", "tau_trait")
SPLITS: Mapping[str, Mapping[str, int]] = {
    "retail": {"train": 500, "dev": 20, "test": 115},
    "airline": {"test": 50},
}
_TASK_LISTS = {
    ("retail", "train"): "TASKS_TRAIN",
    ("retail", "dev"): "TASKS_DEV",
    ("retail", "test"): "TASKS_TEST",
    ("airline", "test"): "TASKS",
}
_TABLES = {
    "retail": ("orders", "products", "users"),
    "airline": ("flights", "reservations", "users"),
}
_USERS_NOT_UPSTREAM = {
    "retail": ("sophia_martinez_7293", "alex_chen_5847"),
    "airline": ("carlos_rodriguez_7891", "jennifer_wong_4523"),
}
_lock = threading.RLock()

Record = dict[str, Any]


class Tool(Protocol):
    """A tool class: static functions only."""

    @staticmethod
    def invoke(data: Mapping[str, Any], **kwargs: Any) -> Any: ...

    @staticmethod
    def get_info() -> dict[str, Any]: ...


@dataclass(frozen=True, slots=True)
class RawTask:
    user_id: str
    instruction: str
    actions: Sequence[Action]
    outputs: Sequence[str]
    annotator: object = None


@dataclass(frozen=True, slots=True)
class DomainFiles:
    """One domain as upstream has it. Shared by the whole process: read only.

    Attributes:
        tools: Tool classes by name, in upstream's order.
        schemas: OpenAI function schemas in the same order.
        wiki: The policy document, which is the system prompt.
        rules: Upstream's rule list (empty for airline).
        tables: Records by key, by table.
    """

    tools: Mapping[str, type[Tool]]
    schemas: tuple[dict[str, Any], ...]
    wiki: str
    rules: tuple[str, ...]
    tables: Mapping[str, dict[str, Record]]


def _wanted(name: str) -> bool:
    tools = tuple(f"tau_trait.envs.{domain}.tools" for domain in SPLITS)
    return name in ("tau_trait.types", "tau_trait.envs.tool") or name.startswith(tools)


def _stand_ins(root: str) -> Mapping[str, SimpleNamespace]:
    return {"tau_trait.types": SimpleNamespace(Task=RawTask, Action=Action)}


_package: Package | None = None
_domains: dict[str, DomainFiles] = {}
_raw_tasks: dict[tuple[str, str], tuple[RawTask, ...]] = {}


def _open_package() -> Package:
    global _package
    if _package is None:
        _package = Package(
            TAU_TRAIT,
            stand_ins=_stand_ins,
            runs=_wanted,
            known_as=lambda name: "tau_bench" + name.removeprefix("tau_trait"),
        )
    return _package


def check_split(domain: str, split: str | None = None) -> None:
    """Raises ValueError naming what exists if the domain or its split does not."""
    if domain not in SPLITS:
        raise ValueError(f"unknown domain {domain!r}: tau-bench has {', '.join(SPLITS)}")
    if split is not None and split not in SPLITS[domain]:
        raise ValueError(f"{domain} has no split {split!r}: it has {', '.join(SPLITS[domain])}")


def domain_files(domain: str) -> DomainFiles:
    """Everything but the tasks; read once per process.

    Raises:
        ValueError: unknown domain.
        SourceError: tau-trait is missing or not version 0.1.1.
    """
    check_split(domain)
    with _lock:
        if domain not in _domains:
            package = _open_package()
            folder = f"tau_trait.envs.{domain}"
            tables = {
                table: cast(
                    dict[str, Record],
                    json.loads(package.read("envs", domain, "data", f"{table}.json")),
                )
                for table in _TABLES[domain]
            }
            for user_id in _USERS_NOT_UPSTREAM[domain]:
                del tables["users"][user_id]
            classes: list[type[Tool]] = package.run(f"{folder}.tools").ALL_TOOLS
            schemas = tuple(tool.get_info() for tool in classes)
            _domains[domain] = DomainFiles(
                tools={
                    str(schema["function"]["name"]): tool
                    for schema, tool in zip(schemas, classes, strict=True)
                },
                schemas=schemas,
                wiki=package.read("envs", domain, "wiki.md").decode(),
                rules=tuple(package.run(f"{folder}.rules").RULES),
                tables=tables,
            )
        return _domains[domain]


def raw_tasks(domain: str, split: str) -> tuple[RawTask, ...]:
    """The tasks of a split in upstream's order; read once per process.

    Raises:
        ValueError: unknown domain or split.
        SourceError: tau-trait is missing or not version 0.1.1.
    """
    check_split(domain, split)
    with _lock:
        if (domain, split) not in _raw_tasks:
            module = _open_package().run(f"tau_trait.envs.{domain}.tasks_{split}")
            tasks: list[RawTask] = getattr(module, _TASK_LISTS[domain, split])
            _raw_tasks[domain, split] = tuple(tasks[: SPLITS[domain][split]])
        return _raw_tasks[domain, split]

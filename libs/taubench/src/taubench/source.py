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

import builtins
import importlib.abc
import importlib.machinery
import importlib.metadata
import importlib.util
import json
import os
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, Protocol, cast

from taubench.task import Action

PACKAGE = "tau-trait"
VERSION = "0.1.1"
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


class SourceError(RuntimeError):
    """tau-trait is missing, of another version, or not as expected."""


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


class _Package:
    """The files of tau_trait, run without importing the package."""

    def __init__(self) -> None:
        spec = importlib.util.find_spec("tau_trait")
        if spec is None or not spec.submodule_search_locations:
            raise SourceError(f"{PACKAGE} is not installed: install {PACKAGE}=={VERSION}")
        try:
            found = importlib.metadata.version(PACKAGE)
        except importlib.metadata.PackageNotFoundError:
            found = "without metadata"
        if found != VERSION:
            raise SourceError(f"{PACKAGE} {found} is installed: install {PACKAGE}=={VERSION}")
        self._root = spec.submodule_search_locations[0]
        self._loader = cast(importlib.abc.ResourceLoader, spec.loader)
        types = SimpleNamespace(Task=RawTask, Action=Action)
        self._modules: dict[str, SimpleNamespace] = {"tau_trait.types": types}
        self._builtins = {**vars(builtins), "__import__": self._import}

    def read(self, *parts: str) -> bytes:
        path = os.path.join(self._root, *parts)
        try:
            return self._loader.get_data(path)
        except OSError as error:
            raise SourceError(f"{PACKAGE} {VERSION} lacks {'/'.join(parts)}: {error}") from error

    def run(self, name: str) -> SimpleNamespace:
        """Runs the module once and returns its namespace."""
        if name not in self._modules:
            *folders, _ = name.split(".")[1:]
            spec = importlib.machinery.PathFinder.find_spec(
                name, [os.path.join(self._root, *folders)]
            )
            if spec is None or spec.loader is None:
                raise SourceError(f"{PACKAGE} {VERSION} lacks the module {name}")
            code = cast(importlib.abc.InspectLoader, spec.loader).get_code(name)
            assert code is not None
            upstream = "tau_bench" + name.removeprefix("tau_trait")
            namespace = {
                "__name__": upstream,
                "__package__": name if spec.submodule_search_locations else name.rpartition(".")[0],
                "__builtins__": self._builtins,
            }
            exec(code, namespace)
            self._modules[name] = SimpleNamespace(**namespace)
        return self._modules[name]

    def _import(
        self,
        name: str,
        globals: Mapping[str, object] | None = None,
        locals: Mapping[str, object] | None = None,
        fromlist: Sequence[str] | None = (),
        level: int = 0,
    ) -> object:
        if level:
            assert globals is not None
            name = importlib.util.resolve_name("." * level + name, str(globals["__package__"]))
        if name.partition(".")[0] != "tau_trait":
            return builtins.__import__(name, globals, locals, fromlist or (), level)
        allowed = name in ("tau_trait.types", "tau_trait.envs.tool") or name.startswith(
            tuple(f"tau_trait.envs.{domain}.tools" for domain in SPLITS)
        )
        if not allowed or not fromlist:
            raise ImportError(f"{name} is not among the modules that turnwise reads of {PACKAGE}")
        return self.run(name)


_package: _Package | None = None
_domains: dict[str, DomainFiles] = {}
_raw_tasks: dict[tuple[str, str], tuple[RawTask, ...]] = {}


def _open_package() -> _Package:
    global _package
    if _package is None:
        _package = _Package()
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

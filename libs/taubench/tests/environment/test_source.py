"""The data is upstream's, and reading it imports nothing that it should not."""

import hashlib
import importlib.metadata
import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from taubench import SPLITS, SourceError, load_tasks, rules, source, tool_schemas, wiki

# The digests of tasks, tables, schemas, wikis and rules were taken from upstream
# (sierra-research/tau-bench at 59a200c), those of the tools' sources from tau-trait 0.1.1.
PINS: dict[str, Any] = json.loads(Path(__file__).with_name("pins.json").read_text())


def digest(value: object) -> str:
    return hashlib.sha256(json.dumps(value).encode()).hexdigest()[:16]


@pytest.mark.parametrize(
    ("domain", "split"), [(domain, split) for domain in SPLITS for split in SPLITS[domain]]
)
def test_every_task_is_upstreams(domain: str, split: str) -> None:
    tasks = load_tasks(domain, split)
    found = [
        digest(
            [
                task.user_id,
                task.instruction,
                [[action.name, action.kwargs] for action in task.actions],
                task.outputs,
            ]
        )
        for task in tasks
    ]
    assert len(tasks) == SPLITS[domain][split]
    assert found == PINS["tasks"][f"{domain}/{split}"]
    assert [task.id for task in tasks] == [f"{domain}/{split}/{i}" for i in range(len(tasks))]


@pytest.mark.parametrize("domain", SPLITS)
def test_every_table_schema_wiki_and_rule_is_upstreams(domain: str) -> None:
    found = {
        "tables": {name: digest(t) for name, t in source.domain_files(domain).tables.items()},
        "records": {name: len(t) for name, t in source.domain_files(domain).tables.items()},
        "schemas": {s["function"]["name"]: digest(s) for s in tool_schemas(domain)},
        "wiki": digest(wiki(domain)),
        "rules": [digest(rule) for rule in rules(domain)],
    }
    assert found == PINS["domains"][domain]


@pytest.mark.parametrize("domain", SPLITS)
def test_the_tools_sources_are_the_ones_that_were_compared_with_upstream(domain: str) -> None:
    files = importlib.metadata.files("tau-trait") or []
    found = {
        file.name: hashlib.sha256(file.read_text().encode()).hexdigest()[:16]
        for file in files
        if file.parent.as_posix() == f"tau_trait/envs/{domain}/tools" and file.suffix == ".py"
    }
    assert found == PINS["tools"][domain]


def test_the_four_users_that_upstream_lacks_are_dropped() -> None:
    dropped = {
        "retail": ("sophia_martinez_7293", "alex_chen_5847"),
        "airline": ("carlos_rodriguez_7891", "jennifer_wong_4523"),
    }
    for domain, users in dropped.items():
        table = source.domain_files(domain).tables["users"]
        assert len(table) == 500
        assert not set(users) & set(table)


def test_reading_everything_imports_neither_the_package_nor_a_model_client() -> None:
    code = """
import sys
from taubench import SPLITS, Environment, load_tasks, tool_schemas, wiki
from taubench.users import OfflineUser
for domain, splits in SPLITS.items():
    tool_schemas(domain), wiki(domain)
    for split in splits:
        Environment(load_tasks(domain, split)[0]).score()
unwanted = ("tau_trait", "tau_bench", "litellm", "openai", "mistralai", "anthropic", "google",
            "requests", "dotenv")
print([name for name in sys.modules if name.partition(".")[0] in unwanted])
"""
    result = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
    )
    assert result.stdout.strip() == "[]", result.stderr


def test_a_module_that_is_not_wanted_is_refused() -> None:
    package = source._open_package()
    for name in ("tau_trait.envs.user", "tau_trait.envs", "tau_trait"):
        with pytest.raises(ImportError, match="not among the modules"):
            package._import(name, fromlist=("x",))


def test_callers_cannot_change_the_schemas_of_others() -> None:
    tool_schemas("retail")[0]["function"]["name"] = "broken"
    assert tool_schemas("retail")[0]["function"]["name"] == "calculate"


@pytest.mark.parametrize(
    ("domain", "split", "message"),
    [
        ("telecom", "test", "unknown domain 'telecom': tau-bench has retail, airline"),
        ("airline", "train", "airline has no split 'train': it has test"),
    ],
)
def test_an_unknown_name_is_answered_with_what_exists(
    domain: str, split: str, message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        load_tasks(domain, split)


@pytest.fixture
def unopened(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    monkeypatch.setattr(source, "_package", None)
    monkeypatch.setattr(source, "_domains", {})
    yield monkeypatch


def test_a_missing_package_is_named_with_its_version(unopened: pytest.MonkeyPatch) -> None:
    unopened.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(SourceError, match="not installed: install tau-trait==0.1.1"):
        source.domain_files("retail")


def test_a_package_without_metadata_is_refused(unopened: pytest.MonkeyPatch) -> None:
    def version(name: str) -> str:
        raise importlib.metadata.PackageNotFoundError(name)

    unopened.setattr(importlib.metadata, "version", version)
    with pytest.raises(SourceError, match="tau-trait without metadata is installed"):
        source.domain_files("retail")


def test_another_version_of_the_package_is_refused(unopened: pytest.MonkeyPatch) -> None:
    unopened.setattr(importlib.metadata, "version", lambda name: "0.2.0")
    with pytest.raises(SourceError, match="tau-trait 0.2.0 is installed: install tau-trait==0.1.1"):
        source.domain_files("retail")

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from run.episodes import TOKENIZER, episode
from turnwise.run.folder import RunFolder
from turnwise.run.traces import trace_row
from turnwise.view.episodes import ORDERS, EpisodeIndex, Filter

NEVER = float("inf")


@pytest.fixture
def folder(tmp_path: Path) -> RunFolder:
    return RunFolder.create(tmp_path / "run", "tau", {})


Add = Callable[..., None]


@pytest.fixture
def add(folder: RunFolder) -> Add:
    def add(rollout: str, *, step: int = 1, kind: str = "train", **how: Any) -> None:
        row = trace_row(episode(rollout, **how), TOKENIZER, step=step, kind=kind, why="best")
        folder.append_episode(row)

    return add


def found(folder: RunFolder, order: str = "oldest", **wanted: Any) -> list[str]:
    index = EpisodeIndex(folder.episodes)
    index.refresh(NEVER)
    entries, done = index.find(Filter(**wanted), order, NEVER)
    assert done
    return [entry.rollout_id for entry in entries]


def test_each_filter_keeps_what_it_names(folder: RunFolder, add: Add) -> None:
    add("a/0", step=1, metrics={"parse_errors": 2.0}, score=0.25)
    add("b/0", step=2, kind="eval", task_id="airline/9", answer="x" * 500)
    add("c/0", step=3, score=None)
    assert found(folder) == ["a/0", "b/0", "c/0"]
    assert found(folder, parse=True) == ["a/0"]
    assert found(folder, kind="eval") == found(folder, task="AIRLINE") == ["b/0"]
    assert found(folder, task="c/0") == ["c/0"]
    assert found(folder, ending="lost:user") == found(folder, error="no ANSWER") == ["c/0"]
    assert found(folder, least_step=2, most_step=2) == ["b/0"]
    assert found(folder, most_score=0.5) == ["a/0"]
    assert found(folder, least_score=0.5) == ["b/0"]
    assert found(folder, least_tokens=500) == ["b/0"]


def test_the_orders_put_first_what_they_name(folder: RunFolder, add: Add) -> None:
    add("a/0", score=0.0, wall_s=9.0)
    add("a/1", score=1.0)
    add("b/0", score=0.5, answer="x" * 500, metrics={"parse_errors": 3.0})
    add("c/0", score=None)
    first = {order: found(folder, order)[0] for order in ORDERS}
    assert first["newest"] == "c/0" and first["oldest"] == "a/0"
    assert first["best"] == "a/1" and first["worst"] == "a/0"
    assert first["longest"] == first["parse errors"] == "b/0"
    assert first["slowest"] == "a/0" and first["spread"] == "a/0"
    assert found(folder, "best")[-1] == found(folder, "worst")[-1] == "c/0"


@pytest.mark.parametrize(
    ("said", "sought"),
    [
        ("It was SENT today", "sent TODAY"),
        ('He said "no"\n', 'said "no"'),
        ("a\\b\tc", "a\\b"),
        ("Ärger in Köln", "ärger in KÖLN"),
        ("日本語", "本"),
    ],
)
def test_text_is_found_as_it_was_said(folder: RunFolder, add: Add, said: str, sought: str) -> None:
    add("a/0", tool=said)
    add("b/0")
    assert found(folder, text=sought) == ["a/0"]


def test_names_of_fields_are_no_text(folder: RunFolder, add: Add) -> None:
    add("a/0")
    assert found(folder, text="loss_mask") == found(folder, text="transcript") == []


def test_a_search_that_was_stopped_goes_on_and_into_a_grown_file(
    folder: RunFolder, add: Add
) -> None:
    for number in range(3):
        add(f"a/{number}")
    index = EpisodeIndex(folder.episodes)
    index.refresh(NEVER)
    wanted = Filter(text="it was sent")
    steps = [index.find(wanted, "oldest", 0.0) for _ in range(3)]
    assert [(len(entries), done) for entries, done in steps] == [(1, False), (2, False), (3, True)]
    add("a/3")
    index.refresh(NEVER)
    assert len(index.find(wanted, "oldest", NEVER)[0]) == 4


def test_broken_lines_and_other_schemas_are_named_and_the_rest_is_read(
    folder: RunFolder, add: Add
) -> None:
    add("a/0")
    with folder.episodes.open("ab") as stream:
        for line in (
            b"{no json}",
            b"\xff\xfe",
            b"[1]",
            json.dumps({"step": 1, "schema": 9}).encode(),
        ):
            stream.write(line + b"\n")
    add("b/0")
    index = EpisodeIndex(folder.episodes)
    index.refresh(NEVER)
    assert [entry.line for entry in index.entries] == [0, 5]
    assert index.broken == 4
    assert "episodes.jsonl:2" in index.problems[0] and "schema 9" in index.problems[3]
    entry = index.at_line(5)
    assert entry is not None and entry.rollout_id == "b/0"
    assert index.at_line(3) is None and index.at_line(6) is None


def test_a_run_that_was_cut_back_forgets_what_it_cut(folder: RunFolder, add: Add) -> None:
    folder.append_metrics({"step": 1, "kind": "train"})
    add("a/0", step=1)
    add("b/0", step=2, tool="It is lost.")
    index = EpisodeIndex(folder.episodes)
    index.refresh(NEVER)
    wanted = Filter(text="it is lost")
    assert len(index.find(wanted, "oldest", NEVER)[0]) == 1
    folder.cut_after(1)
    index.refresh(NEVER)
    assert [entry.rollout_id for entry in index.entries] == ["a/0"]
    assert len(index.group(index.entries[0])) == 1
    add("b/1", step=2)
    index.refresh(NEVER)
    assert index.find(wanted, "oldest", NEVER) == ([], True)

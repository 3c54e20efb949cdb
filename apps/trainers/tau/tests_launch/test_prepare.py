import json
from pathlib import Path
from typing import Any

import pytest
from taubench import load_tasks
from taubench.fewshot import demonstrated
from turnwise.config import ConfigError
from turnwise.method import make_method

from apps.trainers.tau.prepare import prepare


def rows(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    prepare(["--local-dir", str(folder)])
    return folder


@pytest.mark.parametrize(
    ("name", "count"),
    [
        ("retail_train_tasks.jsonl", 500),
        ("retail_dev_tasks.jsonl", 20),
        ("retail_test_tasks.jsonl", 115),
        ("airline_test_tasks.jsonl", 50),
    ],
)
def test_every_split_is_written_whole_with_upstreams_numbers(
    folder: Path, name: str, count: int
) -> None:
    assert [row["index"] for row in rows(folder / name)] == list(range(count))
    assert all(list(row) == ["index", "metadata"] for row in rows(folder / name))


def test_metadata_is_the_task_as_upstream_dumps_it_with_its_place_and_flags(folder: Path) -> None:
    task = load_tasks("retail", "dev")[12]
    metadata = rows(folder / "retail_dev_tasks.jsonl")[12]["metadata"]
    assert list(metadata)[:4] == ["user_id", "actions", "instruction", "outputs"]
    assert metadata["instruction"] == task.instruction
    assert metadata["actions"][0] == {
        "name": task.actions[0].name,
        "kwargs": task.actions[0].kwargs,
    }
    assert (metadata["env"], metadata["task_split"]) == ("retail", "dev")
    assert metadata["flags"] == {
        "gt_write_fails": False,
        "order_dependent": True,
        "noop_reward": 0.0,
        "short_outputs": False,
    }


def test_excluding_by_flag_keeps_the_others_index_and_the_test_files_whole(tmp_path: Path) -> None:
    prepare(["--local-dir", str(tmp_path), "--exclude", "gt-write-fails", "noop-reward"])
    train = [row["index"] for row in rows(tmp_path / "retail_train_tasks.jsonl")]
    assert len(train) == 481
    assert 24 not in train and 161 not in train and 499 in train
    assert len(rows(tmp_path / "retail_test_tasks.jsonl")) == 115


def test_what_few_shot_demonstrates_is_left_out_on_request(tmp_path: Path) -> None:
    prepare(["--local-dir", str(tmp_path), "--exclude", "demonstrated"])
    train = [row["index"] for row in rows(tmp_path / "retail_train_tasks.jsonl")]
    assert set(range(500)) - set(train) == {task.index for task in demonstrated("retail")}
    assert len(rows(tmp_path / "airline_test_tasks.jsonl")) == 50


def test_the_family_is_the_main_jobs_own_tasks_and_shares_none(tmp_path: Path) -> None:
    prepare(["--local-dir", str(tmp_path), "--family"])
    train, held_out = (rows(tmp_path / f"family_{n}.jsonl") for n in ("train", "held_out"))
    assert [len(train), len(held_out)] == [96, 47]
    assert not {row["index"] for row in train} & {row["index"] for row in held_out}
    method = make_method("tau", {"prompt": "compact", "user": {"strategy": "offline"}})
    for split, written in (("train", train), ("held-out", held_out)):
        assert [str(row["index"]) for row in written] == [row.prompt for row in method.rows(split)]
    assert (tmp_path / "policy/model.safetensors").stat().st_size > 1_000_000
    assert not list(tmp_path.glob("retail_*"))
    with pytest.raises(ConfigError, match="--exclude: the family has no tasks"):
        prepare(["--local-dir", str(tmp_path), "--family", "--exclude", "noop-reward"])


def test_an_unknown_flag_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="--exclude: .*gt-write-fails"):
        prepare(["--local-dir", str(tmp_path / "new"), "--exclude", "gt-write-fail"])
    assert not (tmp_path / "new").exists()


def test_a_file_in_the_folders_place_is_named(tmp_path: Path) -> None:
    (tmp_path / "data").write_text("")
    with pytest.raises(ConfigError, match="--local-dir .*data: File exists"):
        prepare(["--local-dir", str(tmp_path / "data")])

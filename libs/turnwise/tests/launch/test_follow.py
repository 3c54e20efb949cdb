import io
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from turnwise.launch.follow import Follower, metrics_row

STEP = "(pid=1) [2026-01-01 00:00:00] model.py:918 - step 3: {'train/loss': 0.5, 'train/n': 2}"


@pytest.mark.parametrize(
    ("line", "row"),
    [
        (STEP, {"step": 3, "kind": "train", "train/loss": 0.5, "train/n": 2}),
        (
            "\x1b[36m(RolloutManager pid=9)\x1b[0m [t] m.py:1 - eval 7: {'eval/dev': 0.25}\x1b[0m",
            {"step": 7, "kind": "eval", "eval/dev": 0.25},
        ),
        ("[t] m.py:1 - perf 0: {'a': nan, 'b': -inf}", {"step": 0, "kind": "perf", "a": None,
                                                        "b": None}),
        ("[t] m.py:1 - step 1: {'a': np.float64(0.5), 'b': np.float32(nan)}",
         {"step": 1, "kind": "train", "a": 0.5, "b": None}),
        ("[t] m.py:1 - step 1: {1, 2}", None),
        ("[t] m.py:1 - critic-step 0: {'a': 1}", {"step": 0, "kind": "critic-step", "a": 1}),
        ("[t] m.py:1 - rollout 0: {'a': 'x', 'b': [1], 'c': True}",
         {"step": 0, "kind": "rollout", "a": "x", "c": True}),
        ("[t] m.py:1 - Saved checkpoint 3: to disk", None),
        ("[t] m.py:1 - step 3: {'a': __import__('os')}", None),
        ("[t] m.py:1 - step 3: {'a': 1", None),
        ("step 3: {'a': 1}", None),
        ("", None),
    ],
)  # fmt: skip
def test_metrics_are_picked_out_of_slimes_log_lines_and_nothing_else(
    line: str, row: dict[str, object] | None
) -> None:
    assert metrics_row(line) == row


@given(st.text())
def test_no_line_raises(line: str) -> None:
    metrics_row(line)
    metrics_row(f"x - step 1: {{{line}}}")


def rows(run_dir: Path) -> list[int]:
    text = (run_dir / "metrics.jsonl").read_text()
    return [json.loads(line)["step"] for line in text.splitlines()]


def test_lines_cut_anywhere_are_put_together(tmp_path: Path) -> None:
    out = io.StringIO()
    follower = Follower(tmp_path, "job", out)
    text = f"begin\n{STEP}\nmore\r\n{STEP}\n"
    for index in range(0, len(text), 7):
        follower.feed(text[index : index + 7])
    follower.close()
    assert out.getvalue() == text
    assert (tmp_path / "logs/job.log").read_bytes().decode() == text
    assert rows(tmp_path) == [3, 3]


def test_a_log_that_begins_again_after_a_lost_connection_is_kept_once(tmp_path: Path) -> None:
    out = io.StringIO()
    follower = Follower(tmp_path, "job", out)
    follower.feed(f"{STEP}\nhal")
    follower.restart()
    follower.feed(f"{STEP[:5]}")
    follower.feed(f"{STEP[5:]}\nhalf a line\n")
    follower.restart()
    follower.close()
    assert out.getvalue() == f"{STEP}\nhalf a line\n"
    assert rows(tmp_path) == [3]


def test_a_log_that_is_followed_again_later_goes_on_where_the_folder_ends(tmp_path: Path) -> None:
    text = f"ä\n{STEP}\n{STEP}\n"
    first = Follower(tmp_path, "job", None)
    first.feed(text[:-5])
    first.close()
    assert rows(tmp_path) == [3]
    again = Follower(tmp_path, "job", None)
    again.feed(text)
    again.close()
    assert rows(tmp_path) == [3, 3]
    assert (tmp_path / "logs/job.log").read_text() == text

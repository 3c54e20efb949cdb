import io
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from turnwise.launch.follow import Follower, LastError
from turnwise.run.relay import relay_line


def row(step: int, kind: str = "slime") -> dict[str, object]:
    return {"step": step, "kind": kind, "numbers": {}}


def relayed(step: int) -> str:
    return f"(RolloutManager pid=9) [t] files.py:1 - {relay_line(row(step))}\x1b[0m"


def rows(run_dir: Path) -> list[int]:
    text = (run_dir / "metrics.jsonl").read_text()
    return [json.loads(line)["step"] for line in text.splitlines()]


def test_nothing_but_relayed_rows_is_taken_from_the_log(tmp_path: Path) -> None:
    follower = Follower(tmp_path, "job", None)
    follower.feed("[t] m.py:1 - rollout 0: {'a': 1}\n[t] m.py:1 - step 1: {'train/loss': 0.5}\n")
    assert not (tmp_path / "metrics.jsonl").exists()
    follower.feed(f"{relayed(3)}\n")
    follower.close()
    assert rows(tmp_path) == [3]


def test_lines_cut_anywhere_are_put_together(tmp_path: Path) -> None:
    out = io.StringIO()
    follower = Follower(tmp_path, "job", out)
    text = f"begin\n{relayed(3)}\nmore\r\n{relayed(3)}\n"
    for index in range(0, len(text), 7):
        follower.feed(text[index : index + 7])
    follower.close()
    assert out.getvalue() == text
    assert (tmp_path / "logs/job.log").read_bytes().decode() == text
    assert rows(tmp_path) == [3, 3]


@pytest.mark.parametrize("size", [1, 3, 99])
def test_of_a_logs_escape_sequences_a_terminal_gets_colours_alone(
    tmp_path: Path, size: int
) -> None:
    out = io.StringIO()
    follower = Follower(tmp_path, "job", out)
    text = "\x1b[36m(pid=9)\x1b[0m 10%\r20% \x1b[2J\x1b]0;mine\x07 \x9b1A\u202e\n"
    for index in range(0, len(text), size):
        follower.feed(text[index : index + size])
    follower.close()
    shown = "\x1b[36m(pid=9)\x1b[0m 10%\r20% \\x1b[2J\\x1b]0;mine\\x07 \\x9b1A\\u202e\n"
    assert out.getvalue() == shown
    assert (tmp_path / "logs/job.log").read_bytes().decode() == text


def test_a_log_that_begins_again_after_a_lost_connection_is_kept_once(tmp_path: Path) -> None:
    out = io.StringIO()
    line = relayed(3)
    follower = Follower(tmp_path, "job", out)
    follower.feed(f"{line}\nhal")
    follower.restart()
    follower.feed(f"{line[:5]}")
    follower.feed(f"{line[5:]}\nhalf a line\n")
    follower.restart()
    follower.close()
    assert out.getvalue() == f"{line}\nhalf a line\n"
    assert rows(tmp_path) == [3]


def test_a_log_that_is_followed_again_later_goes_on_where_the_folder_ends(tmp_path: Path) -> None:
    text = f"ä\n{relayed(3)}\n{relayed(4)}\n"
    first = Follower(tmp_path, "job", None)
    first.feed(text[:-9])
    first.close()
    assert rows(tmp_path) == [3]
    again = Follower(tmp_path, "job", None)
    again.feed(text)
    again.close()
    assert rows(tmp_path) == [3, 4]
    assert (tmp_path / "logs/job.log").read_text() == text


def test_a_job_that_goes_on_replaces_the_rows_of_the_steps_that_it_makes_anew(
    tmp_path: Path,
) -> None:
    first = Follower(tmp_path, "one", None)
    first.feed("".join(f"{relayed(step)}\n" for step in (1, 2, 3)))
    first.close()
    second = Follower(tmp_path, "two", None)
    second.feed("".join(f"{relayed(step)}\n" for step in (3, 4)))
    second.close()
    assert rows(tmp_path) == [1, 2, 3, 4]


WORKER = "\x1b[36m(MegatronTrainRayActor pid=77)\x1b[0m "
REMOTE = """Traceback (most recent call last):
  File "/root/slime/train.py", line 9, in <module>
    train(args)
ray.exceptions.RayTaskError(FileNotFoundError): ray::MegatronTrainRayActor.init() (pid=77)
  File "/root/slime/slime/utils/arguments.py", line 1777, in slime_validate_args
    raise FileNotFoundError(
FileNotFoundError: ref_load /no does not exist, please check the path.
"""


ENGINE = "\x1b[36m(SGLangEngine pid=9)\x1b[0m "
# As slime's log has it when a server dies while it is asked to release its memory.
ENDED = f"""{ENGINE}[t] Scheduler hit an exception: Traceback (most recent call last):
{ENGINE}  File "/sglang/srt/managers/scheduler.py", line 4357, in run_scheduler_process
{ENGINE}torch.AcceleratorError: CUDA error: an illegal memory access was encountered
{ENGINE}For debugging consider passing CUDA_LAUNCH_BLOCKING=1
Traceback (most recent call last):
  File "/root/slime/train.py", line 56, in train
ray.exceptions.RayTaskError(ConnectionError): ray::RolloutManager.offload() (pid=24707)
  File "/usr/lib/python3.12/http/client.py", line 305, in _read_status
http.client.RemoteDisconnected: Remote end closed connection without response
"""


def error(log: str) -> str:
    found = LastError()
    for line in log.split("\n"):
        found.take(line)
    return str(found)


@pytest.mark.parametrize(
    ("log", "said"),
    [
        ("", ""),
        ("ValueError: no traceback, so it was only printed", ""),
        (REMOTE, "FileNotFoundError: ref_load /no does not exist, please check the path."),
        (
            f"{WORKER}{'Traceback (most recent call last):'}\n{WORKER}  File 'a', line 1\n"
            "(raylet) unrelated: text\n"
            f"{WORKER}torch.OutOfMemoryError: CUDA out of memory. [repeated 2x across cluster]",
            "torch.OutOfMemoryError: CUDA out of memory.",
        ),
        (
            f"{REMOTE}{WORKER}Traceback (most recent call last):\n{WORKER}SystemExit: 1\n",
            "FileNotFoundError: ref_load /no does not exist, please check the path.",
        ),
        (
            "Traceback (most recent call last):\n  x\nKeyError: 'a'\n\nDuring handling of the above"
            " exception, another exception occurred:\n\nTraceback (most recent call last):\n  y\n"
            "RuntimeError\n",
            "RuntimeError",
        ),
        (
            ENDED,
            "http.client.RemoteDisconnected: Remote end closed connection without response; an"
            " SGLang server had ended with torch.AcceleratorError: CUDA error: an illegal memory"
            " access was encountered",
        ),
    ],
)
def test_the_exception_that_ended_a_job_is_found_in_its_log(log: str, said: str) -> None:
    assert error(log) == said


@given(st.text(), st.text())
def test_no_line_raises(first: str, second: str) -> None:
    error(f"Traceback (most recent call last):{first}\n{second}")

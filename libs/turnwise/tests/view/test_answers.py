"""What the page is told of an episode beside its tokens."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import tokendelta
import toolparse
from run.episodes import TOKENIZER, episode, message, segment
from run.pages import run_folder
from run.rows import train_row
from turnwise.conversation.history import Turn, reading
from turnwise.run.folder import RunFolder
from turnwise.run.jsonl import dump
from turnwise.run.metrics import SlimeRow, as_row
from turnwise.run.start import how_started, write_start
from turnwise.run.traces import TrainerNumbers, trace_row
from turnwise.view import answers, lanes
from turnwise.view.calls import MAX_CALL
from turnwise.view.run import ViewedRun

TOOLS = [
    {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}},
]


def turn(text: str) -> Turn:
    parsed = toolparse.parse(text, format="qwen25", tools=toolparse.ToolSet(TOOLS))
    return Turn(
        number=0, text=text, content="", parsed=parsed, finish="stop", prompt_tokens=1, tokens=1
    )


def shown(path: Path, made: Any, **how: Any) -> dict[str, Any]:
    """The answer of the page's server for an episode."""
    folder = RunFolder.create(path / "run", "tau", {"method": "tau"})
    folder.append_episode(trace_row(made, TOKENIZER, step=1, kind="train", why="best", **how))
    run = ViewedRun("run", folder.path)
    run.index_for(float("inf"))
    return answers.episode(run, run.index.entries[0])


def said(text: str) -> Any:
    """An episode whose first turn is that text, with what was read of it."""
    made = episode(answer=text)
    read = [
        {**one, "turn": 0, "text": text, "finish": "stop", **reading(turn(text))}
        if number == 2
        else one
        for number, one in enumerate(made.transcript)
    ]
    return episode(answer=text, transcript=read)


def test_a_call_that_can_not_be_read_is_shown_with_its_fault_at_its_byte(tmp_path: Path) -> None:
    text = 'Já! <tool_call>\n{"name": "look", "arguments": {"at": 1,,}}\n</tool_call>'
    error = turn(text).parsed.errors[0]  # type: ignore[union-attr]
    found = shown(tmp_path, said(text))
    ((call,),) = found["calls"].values()
    before, fault, after = call["parts"]
    assert before + fault + after == text[text.index("<tool_call>") :]
    whole = (text[: text.index("<tool_call>")] + before).encode()
    assert len(whole) == error.offset and fault == text.encode()[error.offset :].decode()[0]
    assert call["said"] == f"{error.kind} at byte {error.offset}: {error.message}"
    first = next(one for one in found["segments"][0]["blocks"] if one["turn"] == 0)
    assert first["author"] == "policy" and first["trained"]


def test_calls_that_were_read_are_shown_whole_and_long_ones_cut(tmp_path: Path) -> None:
    long = f'{{"name": "look", "arguments": {{"at": "{"x" * 2 * MAX_CALL}"}}}}'
    text = (
        '<tool_call>\n{"name": "look", "arguments": {}}\n</tool_call>'
        f"\n<tool_call>\n{long}\n</tool_call>"
    )
    one, other = shown(tmp_path, said(text))["calls"][0]
    assert (one["said"], one["name"], one["left_out"]) == ("", "look", 0)
    assert one["parts"] == ['<tool_call>\n{"name": "look", "arguments": {}}\n</tool_call>']
    assert len(other["parts"][0]) == MAX_CALL and other["left_out"] > MAX_CALL


@pytest.mark.parametrize("read", ["yes", [1], [{"span": "x"}], {"a": 1}])
def test_another_key_of_that_name_is_no_call(tmp_path: Path, read: Any) -> None:
    made = episode(transcript=[{"role": "assistant", "content": "", "turn": 0, "read": read}])
    assert shown(tmp_path, made)["calls"] == {}


def test_spans_that_the_text_does_not_have_mark_nothing(tmp_path: Path) -> None:
    error = {"kind": "k", "message": "m", "offset": 3}
    read = [{"name": "a", "span": [0, 1000], "error": error}, {"name": "b", "span": [-5, 2]}]
    message = {"role": "assistant", "turn": 0, "text": "abc", "read": read}
    calls = shown(tmp_path, episode(transcript=(message,)))["calls"][0]
    assert [one["parts"] for one in calls] == [["abc"], ["ab"]]


def test_segments_are_drawn_with_what_they_share(tmp_path: Path) -> None:
    prompt = message("user", "Where is it?")
    first = segment(["Let me look.", "Sent."], prompt=prompt, environment=[message("user", "Yes")])
    fork = segment(["Let me look.", "No."], prompt=prompt, environment=[message("user", "Yes")])
    other = segment(["Alone."], prompt="else")
    again = {"rewrites": [{"turn": 1, "where": "header", "certain": False}, "odd"]}
    found = shown(tmp_path, episode(segments=(first, fork, other), info=again))
    drawn = found["lanes"]
    assert [one["parent"] for one in drawn] == [None, 0, None]
    shared = drawn[1]["shared"]
    assert first.ids[:shared].tolist() == fork.ids[:shared].tolist()
    assert first.ids[shared] != fork.ids[shared]
    assert [part[:2] for part in drawn[2]["parts"]][-1] == ("policy", True)
    assert found["rewrites"] == ["before turn 2: header, by the profile; it was not checked"]


def test_one_segment_needs_no_lanes_and_many_are_bounded(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert shown(tmp_path / "one", episode())["lanes"] == []
    monkeypatch.setattr(lanes, "MAX_LANES", 2)
    many = tuple(segment([word], prompt="p") for word in ("a", "b", "c"))
    assert len(shown(tmp_path / "many", episode(segments=many))["lanes"]) == 2


def test_what_the_trainer_found_is_told_of_the_episode_and_of_its_tokens(tmp_path: Path) -> None:
    made = episode()
    sample: tokendelta.Sample = made.segments[0]
    count = sample.trained_tokens
    numbers = TrainerNumbers(
        advantage=-0.5,
        logprobs=np.full(count, -0.5, dtype=np.float32),
        ratios=np.full(count, 1.1, dtype=np.float32),
        clipped=np.arange(count) == 2,
    )
    folder = RunFolder.create(tmp_path / "run", "tau", {})
    trained = {(made.rollout_id, 0): numbers}
    row = trace_row(made, TOKENIZER, step=1, kind="train", why="best", trained=trained)
    folder.append_episode(row)
    run = ViewedRun("run", folder.path)
    run.index_for(float("inf"))
    entry = run.index.entries[0]
    assert entry.gap == pytest.approx(0.25)
    facts = dict(answers.episode(run, entry)["facts"])
    assert facts["advantage"] == "-0.500" and facts["clipped tokens"] == "1"
    assert facts["largest engine-trainer gap"] == "0.25"
    chunks = run.open(entry).segments[0].window(0, 10_000)
    first = next(chunk for chunk in chunks if chunk["trained"])
    assert first["advantage"] == -0.5 and first["clipped"] == [2]
    assert first["ratios"] == pytest.approx([1.1] * len(first["ids"]))
    assert first["trainer"] == pytest.approx([-0.5] * len(first["ids"]))
    assert all("ratios" not in chunk for chunk in chunks if not chunk["trained"])


def test_a_line_of_a_version_before_these_fields_is_read(tmp_path: Path) -> None:
    row = trace_row(episode(), TOKENIZER, step=1, kind="train", why="best")
    for name in ("weight", "advantage", "trainer_logprobs", "ratios", "clipped", "gap"):
        del row["segments"][0][name]
    folder = RunFolder.create(tmp_path / "run", "tau", {})
    folder.episodes.write_text(dump(row) + "\n")
    run = ViewedRun("run", folder.path)
    run.index_for(float("inf"))
    found = answers.episode(run, run.index.entries[0])
    assert found["tokens"] > 0 and "advantage" not in dict(found["facts"])
    assert found["replay"] is None and run.index.entries[0].gap is None


def test_the_replay_command_names_the_method_the_folder_and_the_line(tmp_path: Path) -> None:
    made = episode(info={"seed": 7})
    assert shown(tmp_path / "early", made)["replay"] is None
    path = tmp_path / "a run's"
    for method, start in (
        ("tau", "./pants run apps/trainers/tau:train --"),
        ("my_agent:Agent", "./pants run libs/turnwise:train -- --method my_agent:Agent"),
        ("$(x)", "./pants run libs/turnwise:train -- --method '$(x)'"),
    ):
        folder = RunFolder.create(path / method / "run", "tau", {})
        write_start(folder.path, how_started(method, {}, {}, file=None, preset=False))
        folder.append_episode(trace_row(made, TOKENIZER, step=1, kind="train", why="best"))
        run = ViewedRun("run", folder.path)
        run.index_for(float("inf"))
        told = answers.episode(run, run.index.entries[0])["replay"]
        assert told is not None and told.startswith(start) and told.endswith("--replay 1")
        assert "a run'\"'\"'s" in told


def test_options_that_the_command_line_changed_stand_beside_what_they_would_be(
    tmp_path: Path,
) -> None:
    before = {"lr": 1e-6, "tau": {"env": "retail"}, "run_dir": None}
    now = {"lr": 3e-4, "tau": {"env": "retail", "more": [1]}, "run_dir": "runs/x"}
    folder = RunFolder.create(tmp_path / "run", "tau", now)
    run = ViewedRun("run", folder.path)
    assert "did not record" in run.shown()["config"]["told"]
    start = how_started("tau", now, before, file=Path("laptop.toml"), preset=True)
    write_start(folder.path, start)
    found = run.shown()["config"]
    assert found["told"] == (
        "Started from the method's preset laptop.toml; the command line changed 2 options."
    )
    assert found["changed"] == [("lr", "0.0003", "1e-06"), ("tau.more", "[1]", "null")]
    assert ("tau.env", "retail") in found["rows"]
    deep = '{"method":"tau","file":null,"preset":true,"changed":{"a":' + "[" * 10_000
    for broken in (b"{torn", b"\xff", deep.encode()):
        (folder.path / "start.json").write_bytes(broken)
        assert "did not record" in run.shown()["config"]["told"]
    assert msgspec.to_builtins(start)["changed"] == {"lr": 1e-06, "tau.more": None}


def test_the_gpus_are_told_from_slimes_numbers_and_from_the_memory_lines_of_its_log(
    tmp_path: Path,
) -> None:
    folder = run_folder(tmp_path, ended=False)
    run = ViewedRun("tau-run", folder.path)
    found = run.shown()
    assert found["gpu_charts"] == [] and found["gpus"]["rows"] == []
    numbers = {"perf/actor_train_tflops": 100.0, "train/loss": 0.5}
    for step in (1, 2):
        row = SlimeRow(step=step, numbers={name: step * one for name, one in numbers.items()})
        folder.append_metrics(as_row(row))
    memory = "{'gpu': 'cuda:0', 'total_GB': 139.8, 'used_GB': %s, 'reserved_GB': 3.0}"
    lines = [
        "(MegatronTrainRayActor pid=7) [x.py:9] [Rank 1] Memory-Usage before: " + memory % 70.5,
        "[Rank 0] Memory-Usage after offload: " + memory % 90.25,
        "[Rank 0] Memory-Usage after onload: " + memory % 12,
        "[Rank 0] Memory-Usage odd: {'gpu': __import__('os')}",
        "[Rank 0] Memory-Usage odd: {'gpu': 'x', 'used_GB': 'much'}",
        "[Rank 0] Memory-Usage odd: {'gpu': 'x', 'used_GB': %s}" % ("9" * 400),
        "[Rank 0] Memory-Usage odd: {'gpu': 'x', []: 1}",
    ]
    log = folder.logs / "job.log"
    log.write_text("\n".join(lines) + "\n[Rank 9] Memory-Usage torn: {'gpu'")
    found = run.shown()
    assert [one["title"] for one in found["gpu_charts"]] == ["perf/actor_train_tflops"]
    assert [one["title"] for one in found["slime_charts"]] == ["train/loss"]
    first, second = found["gpus"]["rows"]
    assert first == [
        "0",
        "cuda:0",
        "12.0 GB",
        "139.8 GB",
        "3.0 GB",
        "after onload",
        "90.2 GB",
        "after offload",
    ]
    assert second[:3] == ["1", "cuda:0", "70.5 GB"]


def test_torchs_memory_on_this_machines_gpu_is_a_curve(tmp_path: Path) -> None:
    folder = run_folder(tmp_path, steps=0, ended=False)
    for step in (1, 2):
        how = {"peak_memory_bytes": step * 10**9, "predicted_memory_bytes": 3 * 10**9}
        folder.append_metrics(as_row(train_row(step=step, **how)))
    (chart,) = ViewedRun("tau-run", folder.path).shown()["gpu_charts"]
    assert chart["title"] == "GPU memory, GB"
    assert chart["data"]["y"] == [1.0, 2.0] and chart["data"]["levels"] == {"expected": 3.0}

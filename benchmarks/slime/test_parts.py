"""What can be tried of the runs without a GPU: their plans, shapes, kills and figures."""

import gc
import json
import os
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from turnwise.config import load_toml
from turnwise.launch.model_files import check_figures
from turnwise.launch.plan import make_plan
from turnwise.launch.preset import read_run

from benchmarks.slime import lag, pauses, shapes
from benchmarks.slime.dumps import facts
from benchmarks.slime.figures import figures
from benchmarks.slime.measure import REPOSITORY, start
from benchmarks.slime.parts import PARTS, Part
from benchmarks.slime.runs import Place, Run, own_slime

ROW = {"rollout_s": 1.0, "tokens_per_s": 9.0, "loop_lag_max_ms": 3.0, "reward_mean": 0.5}
LEDGER = {"started": 3, "finished": 1, "stopped": {"turns": 1}, "lost": {"user": 1}, "cancelled": 0}
# In place of the command: a head, a trainer below it, and rows; a second start finds the first's.
COMMAND = """
import json, os, subprocess, sys, time
folder = sys.argv[sys.argv.index("--run-dir") + 1]
save = sys.argv[sys.argv.index("--save") + 1]
again = os.path.exists(folder)
os.makedirs(folder, exist_ok=True)
script = "import time; time.sleep(60)"
worker = [sys.executable, "-c", script, "ray::MegatronTrainRayActor"]
trainer = subprocess.Popen(worker)
with open(folder + "/launch.json", "w") as stream:
    json.dump({"head": {"process": {"pid": os.getpid()}}}, stream)
with open(folder + "/metrics.jsonl", "a") as stream:
    for step in (4, 5) if again else (1, 2, 3):
        row = {"kind": "train", "step": step, "ledger": LEDGER, **ROW}
        print(json.dumps(row), file=stream, flush=True)
        if again or step < 3:
            numbers = {"train/step": step, "perf/train_time": 0.5}
            row = {"kind": "slime", "step": step, "numbers": numbers}
            print(json.dumps(row), file=stream, flush=True)
if again:
    trainer.kill()
else:
    trainer.wait()
    sys.exit("error: the trainer died")
"""


def place(tmp_path: Path) -> Place:
    return Place(
        python=sys.executable,
        pex=tmp_path / "pex",
        slime=Path("/root/slime"),
        megatron=Path("/root/Megatron-LM"),
        presets=REPOSITORY,
        data=tmp_path / "data",
        work=tmp_path / "work",
    )


@pytest.mark.parametrize("name", sorted(PARTS))
def test_every_part_is_a_run_that_slime_would_be_given(tmp_path: Path, name: str) -> None:
    words = Run(place(tmp_path), name, PARTS[name]).command
    at = words.index("--config")
    made = make_plan(read_run(Path(words[at + 1]), words[at + 2 :]), run_dir=tmp_path)
    assert made.gpus_per_node == PARTS[name].gpus
    shape = "smollm2-135M" if name == "smollm2" else PARTS[name].shape
    if shape is not None:
        config = shapes.SHAPES[shape]
        assert [line.verdict for line in check_figures("model", config, made.options)] == ["ok"]


def test_jobs_that_start_together_have_ports_of_their_own(tmp_path: Path) -> None:
    here = replace(place(tmp_path), slime=tmp_path / "slime")
    path = here.slime / "slime/ray/rollout.py"
    path.parent.mkdir(parents=True)
    path.write_text("base = 15000\ndef start(base_port=15000): ...\n")
    assert own_slime(here, 0) == here
    second = own_slime(here, 2)
    assert "15000" not in (text := (second.slime / "slime/ray/rollout.py").read_text())
    assert text.count("17000") == 2 and path.read_text().count("15000") == 2
    assert f"{second.slime}:" in " ".join(Run(second, "async", PARTS["async"]).command)
    path.write_text("base = 9\n")
    with pytest.raises(ValueError, match="does not have the port 15000"):
        own_slime(here, 1)
    assert start("async@90", 0.0) == ("async", 90.0) and start("tau", 20.0) == ("tau", 20.0)
    with pytest.raises(SystemExit, match="there is no such part"):
        start("atau", 0.0)


def test_what_holds_a_loop_is_told_from_its_stacks(tmp_path: Path) -> None:
    def event(kind: str, name: str, thread: int, at: float) -> dict[str, object]:
        found = {"filename": "/x/m.py", "line": 3}
        return {"ph": kind, "name": name, "tid": thread, "ts": at * 1e6, "args": found}

    base = ["thread (7): loop", "Loop.run_forever", "Loop._run_once"]
    events = [event("B", name, 1, 0.0) for name in base]
    for name, begin, end in (
        ("Selector.select", 0, 1),
        ("grade", 1, 1.6),
        ("Selector.select", 1.6, 2),
    ):
        events += [event("B", name, 1, begin), event("E", name, 1, end)]
    events += [event("B", name, 2, 0.0) for name in ("thread (8): main", "pack_rows")]
    events += [event("E", "pack_rows", 2, 2.0), event("E", "thread (8): main", 2, 2.0)]
    events.sort(key=lambda one: float(str(one["ts"])))
    trace = tmp_path / "trace.json"
    trace.write_text(json.dumps(events))
    (tmp_path / "7.txt").write_text("2 0.400 1700000000.1\n2 0.100 1700000001.1\n0 0.030 1.0\n")
    found = lag.holders(trace, tmp_path / "7.txt")
    assert found["long"] == 1 and found["collections"] == {"0": [1, 0.03], "2": [2, 0.4]}
    (held,) = found["held"]
    assert (held["at_s"], held["seconds"]) == (1.0, 0.6) and "grade (m.py:3)" in held["doing"][0]
    assert "pack_rows" in held["others"]["thread (8): main"][0]


def test_a_long_collection_is_written_down(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pauses, "LEAST_S", 0.0)
    before = list(gc.callbacks)
    pauses.watch(str(tmp_path))
    try:
        gc.collect()
    finally:
        gc.callbacks[:] = before
    lines = (tmp_path / f"{os.getpid()}.txt").read_text().splitlines()
    assert lines[-1].split()[0] == "2" and float(lines[-1].split()[1]) < 60


def test_a_tokens_weights_and_ratio_are_read_from_slimes_dumps() -> None:
    def row(index: int, versions: list[str], cached: list[list[int]]) -> dict[str, object]:
        info = {"turnwise": {"info": {"cached": cached}}}
        return {"index": index, "rollout_id": index, "tokens": [index, 1, 2, 3, 4, 5]} | {
            "weight_versions": versions,
            "metadata": info,
        }

    def trained(index: int, engine: list[float]) -> dict[str, object]:
        masks = [1, 1, 0, 1, 1]
        return {"sample_index": index, "tokens": [index, 1, 2, 3, 4, 5], "loss_masks": masks} | {
            "log_probs": [-1.0] * 5,
            "rollout_log_probs": engine,
        }

    made = [row(0, ["2", "3"], [[10, 0], [20, 10]]), row(1, ["3", "3"], [[10, 5], [20, 20]])]
    engine = [-2.0, -1.0, 0.0, -1.0, -1.0]
    found = facts([(2, made, [trained(1, [-1.0] * 5), trained(0, engine)])])
    assert found["versions_an_episode"] == {1: 1, 2: 1} and found["rows_an_episode"] == {1: 2}
    assert found["rows_unequal"] == 0 and found["rows_without_a_version_a_turn"] == 0
    old, new = found["by_lag"][1], found["by_lag"][0]
    assert (old["tokens"], new["tokens"]) == (2, 6) and new["mean_difference"] == 0.0
    assert old["most_ratio"] == 2.718 and old["clipped"] == 0.5
    assert found["cache_hits_by_turn"] == {1: 0.25, 2: 0.75}
    made[0]["tokens"] = [9, 9]
    assert facts([(2, made, [trained(0, engine)])])["rows_unequal"] == 1


def test_the_presets_that_the_parts_change_are_there() -> None:
    for method, name in {(part.method, part.preset) for part in PARTS.values()}:
        assert load_toml(REPOSITORY / f"apps/trainers/{method}/presets/{name}.toml")


def test_a_process_is_killed_at_its_moment_and_the_run_goes_on_when_it_is_started_again(
    tmp_path: Path,
) -> None:
    here = place(tmp_path)
    script = here.pex / "apps.trainers.tau/train.pex"
    script.parent.mkdir(parents=True)
    script.write_text(f"LEDGER, ROW = {LEDGER}, {ROW}\n{COMMAND}")
    run = Run(here, "kill", Part("x", kill=("ray::MegatronTrainRayActor", "training")))
    until = time.monotonic() + 60
    run.start()
    killed = run.kill_when("ray::MegatronTrainRayActor", "training", until)
    assert "ray::Megatron" in str(killed["killed"]) and killed["rollouts"] == 3
    assert run.wait(until) == 1
    assert "the trainer died" in run.log.read_text()
    run.start()
    assert run.wait(until) == 0
    found = figures(run.folder, run.rows())
    assert found["steps"] == [1, 2, 3, 4, 5]
    assert found["ledger"] == {
        **{"started": 15, "finished": 5, "stopped": 5, "lost": 5, "cancelled": 0},
        "do_not_balance": 0,
    }
    assert found["train_s"]["number"] == 4 and found["loop_lag_ms"]["most"] == 3.0


def test_a_run_that_ends_before_its_moment_is_waited_for_no_longer(tmp_path: Path) -> None:
    here = place(tmp_path)
    script = here.pex / "apps.trainers.tau/train.pex"
    script.parent.mkdir(parents=True)
    script.write_text("raise SystemExit('no GPU')")
    run = Run(here, "early", Part("x"))
    run.start()
    assert run.kill_when("ray::", "rollout", time.monotonic() + 60) == {"killed": None}
    assert not run.lives() and run.wait(time.monotonic() + 60) == 1


def test_a_shape_has_random_weights_and_a_text_for_every_id(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = {**shapes.COMMON, "vocab_size": 3000, "hidden_size": 32, "intermediate_size": 64}
    small |= {"num_hidden_layers": 2, "num_attention_heads": 2, "num_key_value_heads": 1}
    small |= {"head_dim": 16, "rope_theta": 10000}
    monkeypatch.setitem(shapes.SHAPES, "small", small)
    folder = tmp_path / "small"
    policy = REPOSITORY / "apps/trainers/tau/policy"
    shapes.make_shape("small", policy, folder, device="cpu")
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(str(folder))
    assert all(tokenizer.decode([place]) for place in (2100, 2999)) and len(tokenizer) == 3000
    text = "cancel the order #W123"
    before = AutoTokenizer.from_pretrained(str(policy))
    assert tokenizer.encode(text) == before.encode(text)
    model = AutoModelForCausalLM.from_pretrained(str(folder))
    assert model.config.vocab_size == 3000
    assert json.loads((folder / "config.json").read_text())["tie_word_embeddings"] is True

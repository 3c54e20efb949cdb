"""What can be tried of the runs without a GPU: their plans, shapes, kills and figures."""

import json
import sys
import time
from pathlib import Path

import pytest
from turnwise.config import load_toml
from turnwise.launch.model_files import check_figures
from turnwise.launch.plan import make_plan
from turnwise.launch.preset import read_run

from benchmarks.slime import shapes
from benchmarks.slime.figures import figures
from benchmarks.slime.measure import REPOSITORY
from benchmarks.slime.parts import PARTS, Part
from benchmarks.slime.runs import Place, Run

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
    if PARTS[name].shape is not None:
        config = shapes.SHAPES[str(PARTS[name].shape)]
        assert [line.verdict for line in check_figures("model", config, made.options)] == ["ok"]


def test_the_presets_that_the_parts_change_are_there() -> None:
    for method in {part.method for part in PARTS.values()}:
        assert load_toml(REPOSITORY / f"apps/trainers/{method}/presets/shipped-policy.toml")


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

"""Each preset becomes exactly the argument list that is kept in golden/.

To renew them after a change that is meant:
`python -m apps.trainers.memagent.tests_training.test_presets`.
"""

from pathlib import Path
from typing import Any

import pytest
from turnwise.launch.flags import check_arguments
from turnwise.launch.plan import Plan, make_plan
from turnwise.launch.preset import read_run

from apps.trainers.memagent.options import MemAgentOptions

HERE = Path(__file__).parent
PRESETS = ("qwen2.5-7b", "qwen2.5-7b-paper")

COMMON = """
--use-kl-loss --kl-loss-coef 0.001 --kl-loss-type low_var_kl --entropy-coef 0.0 --eps-clip 0.2
--advantage-estimator grpo --optimizer adam --lr 1e-6 --lr-decay-style constant
--rollout-temperature 1.0 --n-samples-per-prompt 16 --colocate --balance-data
--tensor-model-parallel-size 4 --sequence-parallel --pipeline-model-parallel-size 1
--recompute-granularity full --recompute-method uniform --recompute-num-layers 1
--use-dynamic-batch-size --max-tokens-per-gpu 16384
"""
SETTINGS = {
    "qwen2.5-7b": "--actor-num-nodes 1 --rollout-batch-size 16 --global-batch-size 256"
    " --num-epoch 1 --rollout-shuffle --eps-clip-high 0.3 --save-interval 100",
    "qwen2.5-7b-paper": "--actor-num-nodes 4 --rollout-batch-size 128 --global-batch-size 128"
    " --num-epoch 30 --eps-clip-high 0.2 --disable-grpo-std-normalization --lr-warmup-iters 20"
    " --n-samples-per-eval-prompt 4 --eval-interval 5 --eval-top-p 0.7 --calculate-per-token-loss",
}
METHOD = {
    "qwen2.5-7b": {"max_final_tokens": 256, "max_chunks": 512, "on_overlong": "refuse"},
    "qwen2.5-7b-paper": {"max_final_tokens": 1024, "max_chunks": 8, "on_overlong": "centre"},
}


def plan(name: str) -> Plan:
    path = HERE.parent / "presets" / f"{name}.toml"
    return make_plan(read_run(path, (), method="memagent"), run_dir=Path("run"))


def golden_text(name: str) -> str:
    return "".join(f"{' '.join((key, *values))}\n" for key, values in plan(name).options.items())


@pytest.mark.parametrize("name", PRESETS)
def test_a_preset_becomes_the_argument_list_that_is_kept(name: str) -> None:
    assert golden_text(name) == (HERE / "golden" / f"{name}.txt").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", PRESETS)
def test_it_has_the_settings_that_it_names(name: str) -> None:
    made = plan(name).options
    named = check_arguments(f"{COMMON} {SETTINGS[name]}".split())
    assert {key: _comparable(made.get(key)) for key in named} == {
        key: _comparable(values) for key, values in named.items()
    }


@pytest.mark.parametrize("name", PRESETS)
def test_the_method_gets_its_options(name: str) -> None:
    sent = dict(plan(name).custom_config["turnwise"])
    assert sent.pop("method") == "memagent"
    options = MemAgentOptions(**sent)
    assert (options.chunk_tokens, options.max_memory_tokens) == (5_000, 1_024)
    assert (options.prompt, options.order) == ("full", "problem-first")
    for key, value in METHOD[name].items():
        assert getattr(options, key) == value


@pytest.mark.parametrize("name", PRESETS)
def test_a_turn_fits_the_models_own_positions(name: str) -> None:
    made = plan(name)
    context = int(made.value("--rollout-max-context-len") or 0)
    assert 5_000 + 2 * 1_024 < context <= int(made.value("--sglang-context-length") or 0) <= 32_768


@pytest.mark.parametrize("name", PRESETS)
def test_training_is_evaluated_on_a_file_that_is_no_test(name: str) -> None:
    assert plan(name).options["--eval-prompt-data"] == ["dev", "/root/memagent/dev.jsonl"]


def _comparable(values: list[str] | None) -> Any:
    def one(value: str) -> str | float:
        try:
            return float(value)
        except ValueError:
            return value

    return None if values is None else [one(value) for value in values]


if __name__ == "__main__":
    for preset in PRESETS:
        (HERE / "golden" / f"{preset}.txt").write_text(golden_text(preset), encoding="utf-8")

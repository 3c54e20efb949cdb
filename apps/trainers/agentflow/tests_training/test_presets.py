"""The preset becomes exactly the argument list that is kept in golden/.

To renew it after a change that is meant:
`python -m apps.trainers.agentflow.tests_training.test_presets`.
"""

import json
import re
from pathlib import Path
from typing import Any

import pytest
from turnwise.config import load_toml
from turnwise.launch.engines import check_engines
from turnwise.launch.flags import check_arguments
from turnwise.launch.model_files import check_figures
from turnwise.launch.plan import Plan, make_plan
from turnwise.launch.preset import read_run
from turnwise.local.command import train_method

from apps.trainers.agentflow.config import AgentFlowOptions

HERE = Path(__file__).parent
PRESET = HERE.parent / "presets" / "qwen2.5-7b.toml"
GOLDEN = HERE / "golden" / "qwen2.5-7b.txt"
ENGINES = "apps/trainers/agentflow/presets/qwen2.5-7b.sglang.yaml"

# The settings of the published run with this model, as flags; paths are this product's.
PUBLISHED = """
--actor-num-nodes 1 --actor-num-gpus-per-node 4 --colocate
--hf-checkpoint /root/Qwen2.5-7B-Instruct/ --ref-load /root/Qwen2.5-7B-Instruct_torch_dist/
--save-interval 100
--prompt-data /root/agentflow/dapo-math-17k.jsonl --input-key prompt --label-key label
--rollout-shuffle --num-epoch 1 --rollout-batch-size 8 --n-samples-per-prompt 8
--rollout-temperature 0.7 --global-batch-size 64 --balance-data
--eval-interval 20 --eval-prompt-data aime-2024 /root/agentflow/aime-2024.jsonl
--n-samples-per-eval-prompt 1 --eval-top-p 0.95
--tensor-model-parallel-size 4 --sequence-parallel --pipeline-model-parallel-size 1
--context-parallel-size 1 --expert-model-parallel-size 1 --expert-tensor-parallel-size 1
--recompute-granularity full --recompute-method uniform --recompute-num-layers 1
--use-dynamic-batch-size --max-tokens-per-gpu 16384
--advantage-estimator grpo --use-kl-loss --kl-loss-coef 0.001 --kl-loss-type low_var_kl
--entropy-coef 0.0 --eps-clip 0.2 --eps-clip-high 0.3
--optimizer adam --lr 1e-6 --lr-decay-style constant --weight-decay 0.1 --adam-beta1 0.9
--adam-beta2 0.98
--rollout-num-gpus-per-engine 4 --sglang-mem-fraction-static 0.75
--attention-dropout 0.0 --hidden-dropout 0.0 --accumulate-allreduce-grads-in-fp32
--attention-softmax-in-fp32 --attention-backend flash
"""


def plan(*overrides: str) -> Plan:
    return make_plan(read_run(PRESET, overrides, method="agentflow"), run_dir=Path("run"))


def golden_text() -> str:
    return "".join(f"{' '.join((name, *values))}\n" for name, values in plan().options.items())


def engines() -> list[dict[str, str]]:
    """The models of the engines' file; each has one group of engines."""
    text = (PRESET.parent / Path(ENGINES).name).read_text(encoding="utf-8")
    return [
        dict(re.findall(r"^[ -]+(\w+): (\S+)$", block, re.MULTILINE))
        for block in re.split(r"^  (?=- name)", text, flags=re.MULTILINE)[1:]
    ]


def test_the_preset_becomes_the_argument_list_that_is_kept() -> None:
    assert golden_text() == GOLDEN.read_text(encoding="utf-8")


def test_the_preset_of_the_shipped_planner_is_the_laptops_run() -> None:
    path = PRESET.with_name("shipped-policy.toml")
    made = make_plan(read_run(path, method="agentflow"), run_dir=Path("run"))
    config = json.loads((HERE.parent / "policy/config.json").read_text())
    assert [line.verdict for line in check_figures("model", config, made.options)] == ["ok"]
    laptop = load_toml(PRESET.with_name("laptop.toml"))
    for name in ("num-rollout", "rollout-batch-size", "lr", "eps-clip-high"):
        assert float(made.value(f"--{name}") or 0) == laptop[name], name
    for name in ("rollout-max-response-len", "rollout-max-context-len"):
        assert int(made.value(f"--{name}") or 0) == laptop[name], name
    sent = AgentFlowOptions(**_without_method(made))
    own = {key.replace("-", "_"): value for key, value in laptop["agentflow"].items()}
    assert sent == AgentFlowOptions(**own)


def test_it_has_every_setting_of_the_published_run() -> None:
    made = plan().options
    published = check_arguments(PUBLISHED.split())
    assert {name: _comparable(made.get(name)) for name in published} == {
        name: _comparable(values) for name, values in published.items()
    }


def test_the_turn_mean_reaches_slime_and_the_method_its_options() -> None:
    made = plan()
    assert made.value("--rollout-data-postprocess-path") == "turnwise.slime.train_data"
    sent = dict(made.custom_config["turnwise"])
    assert sent.pop("method") == "agentflow"
    options = AgentFlowOptions(**sent)
    assert (options.max_steps, options.objective, options.prompt) == (5, "turn-mean", "full")


def test_every_frozen_model_is_an_engine_whose_weights_stay() -> None:
    models = AgentFlowOptions(**_without_method(plan())).models
    served = {one["name"]: one for one in engines()}
    for name, model in {**models.by_name(), "judge": models.judge}.items():
        assert model is not None and served[model.sglang]["update_weights"] == "false", name


def test_the_first_engine_is_the_planner_and_all_fill_the_gpus_of_the_rollout() -> None:
    made, served = plan(), engines()
    assert [one["update_weights"] for one in served] == ["true", "false", "false"]
    assert served[0]["model_path"] == made.value("--hf-checkpoint")
    gpus = sum(int(one["num_gpus"]) for one in served)
    assert str(gpus) == made.value("--rollout-num-gpus") == made.value("--num-gpus-per-node")
    assert made.value("--sglang-config") == ENGINES
    made.options["--sglang-config"] = [str(PRESET.with_name(Path(ENGINES).name))]
    check_engines(made)
    assert (made.nodes, made.gpus_per_node) == (1, 8)


def test_a_dry_run_prints_the_plan_and_starts_nothing(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    words = ["--backend", "slime", "--config", str(PRESET), "--dry-run", "--lr", "2e-6"]
    assert train_method("agentflow", [*words, "--run-dir", str(tmp_path / "run")]) == 0
    assert "--lr 2e-6" in capsys.readouterr().out
    assert not (tmp_path / "run").exists()


def _without_method(made: Plan) -> dict[str, Any]:
    return {
        name: value for name, value in made.custom_config["turnwise"].items() if name != "method"
    }


def _comparable(values: list[str] | None) -> list[str | float] | None:
    def one(value: str) -> str | float:
        try:
            return float(value)
        except ValueError:
            return value

    return None if values is None else [one(value) for value in values]


if __name__ == "__main__":
    GOLDEN.write_text(golden_text(), encoding="utf-8")

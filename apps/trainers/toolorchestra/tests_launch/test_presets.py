"""The preset becomes exactly the argument list that is kept in golden/.

To renew it after a change that is meant:
`python -m apps.trainers.toolorchestra.tests_launch.test_presets`.
"""

import re
from pathlib import Path
from typing import Any

import pytest
from turnwise.launch.engines import check_engines
from turnwise.launch.flags import check_arguments
from turnwise.launch.plan import Plan, make_plan
from turnwise.launch.preset import read_run
from turnwise.local.command import train_method

from apps.trainers.toolorchestra.options import ToolOrchestraOptions

HERE = Path(__file__).parent
PRESET = HERE.parent / "presets" / "qwen3-8b.toml"
GOLDEN = HERE / "golden" / "qwen3-8b.txt"
ENGINES = "apps/trainers/toolorchestra/presets/qwen3-8b.sglang.yaml"

# The settings of the published run, as flags; paths and columns are this product's. Left out are
# those that the preset says otherwise, with its reason: context and micro-batch.
PUBLISHED = """
--actor-num-nodes 1 --actor-num-gpus-per-node 4 --colocate
--hf-checkpoint /root/Qwen3-8B/ --ref-load /root/Qwen3-8B_torch_dist/ --save-interval 10
--prompt-data /root/toolorchestra/data_slime_full.jsonl --metadata-key metadata
--rollout-shuffle --num-epoch 2 --rollout-batch-size 32 --n-samples-per-prompt 8
--rollout-max-response-len 16384 --rollout-temperature 0.7 --global-batch-size 128 --balance-data
--tensor-model-parallel-size 2 --pipeline-model-parallel-size 1
--context-parallel-size 1 --expert-model-parallel-size 1 --expert-tensor-parallel-size 1
--recompute-granularity full --recompute-method uniform --recompute-num-layers 1
--recompute-loss-function --use-dynamic-batch-size --max-tokens-per-gpu 8192
--log-probs-chunk-size 4096
--advantage-estimator grpo --use-kl-loss --kl-loss-coef 0.001 --kl-loss-type low_var_kl
--entropy-coef 0.0 --eps-clip 0.2 --eps-clip-high 0.3
--optimizer adam --lr 1e-6 --lr-decay-style constant --weight-decay 0.1 --adam-beta1 0.9
--adam-beta2 0.98
--rollout-num-gpus-per-engine 2 --sglang-mem-fraction-static 0.5 --sglang-server-concurrency 512
--attention-dropout 0.0 --hidden-dropout 0.0 --accumulate-allreduce-grads-in-fp32
--attention-softmax-in-fp32 --attention-backend flash
"""


def plan(*overrides: str) -> Plan:
    return make_plan(read_run(PRESET, overrides, method="toolorchestra"), run_dir=Path("run"))


def golden_text() -> str:
    return "".join(f"{' '.join((name, *values))}\n" for name, values in plan().options.items())


def engines() -> list[dict[str, str]]:
    """The models of the engines' file; each has one group of engines."""
    text = (PRESET.parent / Path(ENGINES).name).read_text(encoding="utf-8")
    return [
        dict(re.findall(r"^[ -]+(\w+): (\S+)$", block, re.MULTILINE))
        for block in re.split(r"^  (?=- name)", text, flags=re.MULTILINE)[1:]
    ]


def sent(made: Plan) -> ToolOrchestraOptions:
    """The options that the hooks get."""
    given = made.custom_config["turnwise"]
    return ToolOrchestraOptions(**{name: one for name, one in given.items() if name != "method"})


def test_the_preset_becomes_the_argument_list_that_is_kept() -> None:
    assert golden_text() == GOLDEN.read_text(encoding="utf-8")


def test_it_has_every_setting_of_the_published_run() -> None:
    made = plan().options
    published = check_arguments(PUBLISHED.split())
    assert {name: _comparable(made.get(name)) for name in published} == {
        name: _comparable(values) for name, values in published.items()
    }


def test_the_hooks_get_the_options_with_the_experts_by_name() -> None:
    options = sent(plan("--toolorchestra.models.Qwen/Qwen2.5-Math-7B-Instruct.top-p", "0.9"))
    assert options.models["Qwen/Qwen2.5-Math-7B-Instruct"].top_p == 0.9
    assert (options.max_turns, options.on_malformed, options.cache) == (12, "stop", None)


def test_every_expert_is_an_engine_whose_weights_stay() -> None:
    options, served = sent(plan()), {one["name"]: one for one in engines()}
    assert options.judge_model is not None
    for model in (*options.models.values(), options.judge_model):
        assert served[model.sglang]["update_weights"] == "false"


def test_experts_that_call_tools_and_think_come_back_parsed() -> None:
    for one in engines()[1:]:
        if "Math" not in one["model_path"]:
            assert (one["tool_call_parser"], one["reasoning_parser"]) == ("qwen25", "qwen3")


def test_the_first_engine_is_the_policy_and_all_fill_the_gpus_of_the_rollout() -> None:
    made, served = plan(), engines()
    assert [one["update_weights"] for one in served] == ["true", *["false"] * 4]
    assert served[0]["model_path"] == made.value("--hf-checkpoint")
    gpus = sum(int(one["num_gpus"]) for one in served)
    assert str(gpus) == made.value("--rollout-num-gpus") == made.value("--num-gpus-per-node")
    assert made.value("--sglang-config") == ENGINES
    made.options["--sglang-config"] = [str(PRESET.with_name(Path(ENGINES).name))]
    check_engines(made)


def test_the_compose_file_serves_what_the_preset_asks() -> None:
    text = (PRESET.parent / "qwen3-8b.compose.yaml").read_text(encoding="utf-8")
    services = re.findall(r"^  ([\w-]+):$", text, re.MULTILINE)
    assert services == ["retrieval", *(one["name"] for one in engines()[1:])]
    assert "--port 8000" in text and sent(plan()).retrieval.url.endswith(":8000")
    devices = re.findall(r'device_ids: \["(\d)"\]', text)
    assert devices == ["4", "5", "6", "7"]


def test_a_dry_run_prints_the_plan_and_starts_nothing(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    words = ["--backend", "slime", "--config", str(PRESET), "--dry-run", "--lr", "2e-6"]
    assert train_method("toolorchestra", [*words, "--run-dir", str(tmp_path / "run")]) == 0
    assert "--lr 2e-6" in capsys.readouterr().out
    assert not (tmp_path / "run").exists()


def _comparable(values: list[str] | None) -> list[Any] | None:
    def one(value: str) -> str | float:
        try:
            return float(value)
        except ValueError:
            return value

    return None if values is None else [one(value) for value in values]


if __name__ == "__main__":
    GOLDEN.write_text(golden_text(), encoding="utf-8")

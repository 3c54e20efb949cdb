"""Every preset becomes exactly the argument list that is kept in golden/.

To renew one after a change that is meant: `python -m apps.trainers.tau.tests_launch.test_presets`.
"""

import json
from pathlib import Path

import pytest
from turnwise.config import ConfigError, load_toml
from turnwise.launch.flags import check_arguments
from turnwise.launch.model_files import check_figures
from turnwise.launch.plan import Plan, custom_config_text, make_plan
from turnwise.launch.preset import read_run
from turnwise.method import Services, make_method

from apps.trainers.tau.method import TauMethod

HERE = Path(__file__).parent
PRESETS = sorted(
    set((HERE.parent / "presets").glob("*.toml")) - {HERE.parent / "presets/laptop.toml"}
)
MODELS = [path for path in PRESETS if path.stem.startswith("qwen")]

# Every argument of the published example for this model on two GPUs.
EXAMPLE = """
--actor-num-nodes 1 --actor-num-gpus-per-node 2 --rollout-num-gpus 2 --colocate
--hf-checkpoint /root/Qwen3-4B-Instruct-2507/ --ref-load /root/Qwen3-4B-Instruct-2507_torch_dist/
--load /root/Qwen3-4B-Instruct-2507_slime/ --save /root/Qwen3-4B-Instruct-2507_slime/
--save-interval 20
--prompt-data /root/tau-bench/retail_train_tasks.jsonl --input-key index --rollout-shuffle
--num-rollout 500 --rollout-batch-size 32 --n-samples-per-prompt 8 --rollout-max-response-len 1024
--rollout-temperature 1 --global-batch-size 256 --balance-data
--dynamic-sampling-filter-path
slime.rollout.filter_hub.dynamic_sampling_filters.check_reward_nonzero_std
--eval-interval 5 --eval-prompt-data retail-dev /root/tau-bench/retail_dev_tasks.jsonl
--n-samples-per-eval-prompt 1 --eval-max-response-len 1024 --eval-top-k 1
--tensor-model-parallel-size 2 --sequence-parallel --pipeline-model-parallel-size 1
--context-parallel-size 1 --expert-model-parallel-size 1 --expert-tensor-parallel-size 1
--recompute-granularity full --recompute-method uniform --recompute-num-layers 1
--use-dynamic-batch-size --max-tokens-per-gpu 9216
--advantage-estimator grpo --use-kl-loss --kl-loss-coef 0.00 --kl-loss-type low_var_kl
--entropy-coef 0.00 --eps-clip 0.2 --eps-clip-high 0.28
--optimizer adam --lr 1e-6 --lr-decay-style constant --weight-decay 0.1 --adam-beta1 0.9
--adam-beta2 0.98
--rollout-num-gpus-per-engine 1 --sglang-mem-fraction-static 0.7
--attention-dropout 0.0 --hidden-dropout 0.0 --accumulate-allreduce-grads-in-fp32
--attention-softmax-in-fp32 --attention-backend flash
--swiglu --num-layers 36 --hidden-size 2560 --ffn-hidden-size 9728 --num-attention-heads 32
--group-query-attention --num-query-groups 8 --use-rotary-position-embeddings
--disable-bias-linear --normalization RMSNorm --norm-epsilon 1e-6 --rotary-base 5000000
--vocab-size 151936 --kv-channels 128 --qk-layernorm
"""
# What this product adds to it: its hooks (the filter drops the same groups, and those with too many
# lost members), the length of a conversation, the node's size, which slime would take for 8, and
# engines that do not log each request.
ADDED = {
    "--dynamic-sampling-filter-path": ["turnwise.slime.dynamic_filter"],
    "--rollout-max-context-len": ["16384"],
    "--custom-generate-function-path": ["turnwise.slime.generate"],
    "--custom-rm-path": ["turnwise.slime.reward_func"],
    "--custom-reward-post-process-path": ["turnwise.slime.post_process_rewards"],
    "--rollout-data-postprocess-path": ["turnwise.slime.train_data"],
    "--sglang-log-level-http": ["warning"],
    "--custom-rollout-log-function-path": ["turnwise.slime.rollout_log"],
    "--custom-eval-rollout-log-function-path": ["turnwise.slime.eval_log"],
    "--custom-config-path": ["turnwise.json"],
    "--num-gpus-per-node": ["2"],
}


def plan(path: Path, *overrides: str) -> Plan:
    return make_plan(read_run(path, overrides), run_dir=Path("run"))


def golden_text(path: Path) -> str:
    return "".join(f"{' '.join((name, *values))}\n" for name, values in plan(path).options.items())


def comparable(values: list[str]) -> list[str | float]:
    def one(value: str) -> str | float:
        try:
            return float(value)
        except ValueError:
            return value

    return [one(value) for value in values]


@pytest.mark.parametrize("path", PRESETS, ids=lambda path: path.stem)
def test_a_preset_becomes_the_argument_list_that_is_kept(path: Path) -> None:
    kept = (HERE / "golden" / f"{path.stem}.txt").read_text(encoding="utf-8")
    assert golden_text(path) == kept


@pytest.mark.parametrize("path", PRESETS, ids=lambda path: path.stem)
def test_the_list_of_words_and_the_options_by_flag_say_the_same(path: Path) -> None:
    made = plan(path)
    assert check_arguments(made.arguments) == made.options


def test_every_preset_of_the_product_is_there() -> None:
    names = [path.stem for path in PRESETS]
    models = ["qwen2.5-3b", "qwen2.5-7b", "qwen3-4b-instruct-2507", "qwen3-8b"]
    assert names == [*models, "shipped-policy", "smollm2-135m", "tau2-telecom-solo"]


def test_the_4b_preset_has_every_argument_of_the_published_example_and_what_the_hooks_need() -> (
    None
):
    made = plan(HERE.parent / "presets" / "qwen3-4b-instruct-2507.toml").options
    example = check_arguments(EXAMPLE.split())
    assert {name: comparable(values) for name, values in made.items()} == {
        name: comparable(values) for name, values in {**example, **ADDED}.items()
    }


@pytest.mark.parametrize("path", MODELS, ids=lambda path: path.stem)
@pytest.mark.parametrize("strategy", ["tool-calling", "act", "react", "few-shot"])
async def test_the_method_of_a_preset_starts_with_every_strategy_and_needs_its_key(
    path: Path, strategy: str
) -> None:
    made = plan(path, "--tau.agent-strategy", strategy)
    options = dict(json.loads(custom_config_text(made))["turnwise"])
    method = make_method(options.pop("method"), options)
    assert isinstance(method, TauMethod) and method.options.turns == 30
    with pytest.raises(ConfigError, match="user.key-env: .* GEMINI_API_KEY is not set"):
        await method.open(Services(environ={}))


@pytest.mark.parametrize("path", MODELS, ids=lambda path: path.stem)
async def test_the_method_of_a_preset_starts_without_a_key_where_none_is_needed(
    path: Path,
) -> None:
    options = dict(plan(path, "--tau.user.strategy", "offline").custom_config["turnwise"])
    method = make_method(options.pop("method"), options)
    await method.open(Services(environ={}))
    assert method.players() == {"user": "offline-1"}


def test_the_preset_of_the_shipped_policy_is_the_laptops_run() -> None:
    made = plan(HERE.parent / "presets/shipped-policy.toml")
    config = json.loads((HERE.parent / "policy/config.json").read_text())
    assert [line.verdict for line in check_figures("model", config, made.options)] == ["ok"]
    laptop = load_toml(HERE.parent / "presets/laptop.toml")
    assert float(made.value("--lr") or 0) == laptop["lr"]
    assert made.value("--num-rollout") == str(laptop["num-rollout"])
    assert float(made.value("--eps-clip-high") or 0) == laptop["eps-clip-high"]
    options = made.custom_config["turnwise"]
    assert (options["prompt"], options["objective"]) == ("compact", "global-token-mean")
    assert options["user"]["strategy"] == laptop["tau"]["user"]["strategy"] == "offline"
    assert (made.nodes, made.gpus_per_node) == (1, 1)


async def test_the_preset_of_tau2_trains_on_what_no_score_is_of_and_needs_no_user() -> None:
    made = plan(HERE.parent / "presets/tau2-telecom-solo.toml")
    options = dict(made.custom_config["turnwise"])
    method = make_method(options.pop("method"), options)
    await method.open(Services(environ={}))
    assert method.players() == {"tasks": "tau2-telecom-solo, version 26.3"}
    trained, evaluated = method.rows("train"), method.rows("base")
    ids = [{row.metadata["task_id"] for row in rows} for rows in (trained, evaluated)]
    assert (len(ids[0]), len(ids[1])) == (2171, 114) and not ids[0] & ids[1]
    assert made.value("--prompt-data") == "/root/tau2/tau2-telecom-solo_rest.jsonl"


def test_two_nodes_are_two_flags_more() -> None:
    path = HERE.parent / "presets" / "qwen3-8b.toml"
    made = plan(
        path,
        *"--actor-num-nodes 2 --actor-num-gpus-per-node 8 --rollout-num-gpus 16".split(),
    )
    assert (made.nodes, made.gpus_per_node) == (2, 8)
    assert made.value("--num-gpus-per-node") == "8"


if __name__ == "__main__":
    for preset in PRESETS:
        (HERE / "golden" / f"{preset.stem}.txt").write_text(golden_text(preset), encoding="utf-8")

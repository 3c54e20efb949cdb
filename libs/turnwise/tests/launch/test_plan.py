import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from turnwise.config import ConfigError
from turnwise.launch.flags import model_arguments
from turnwise.launch.plan import Debug, Plan, custom_config_text, make_plan
from turnwise.launch.preset import ModelConfig, read_run
from turnwise.launch.rules import check_rules
from turnwise.method import find_method, make_method

ASYNC = "--rollout-function-path slime.rollout.fully_async_rollout.generate_rollout_fully_async"
SMALL = """
[model]
name = "qwen3-4B"
[tau]
[cluster]
actor-num-gpus-per-node = 2
colocate = true
[rollout]
prompt-data = "/data/rows.jsonl"
num-rollout = 2
rollout-batch-size = 4
rollout-max-context-len = 4096
n-samples-per-prompt = 2
global-batch-size = 8
[ckpt]
hf-checkpoint = "/model"
ref-load = "/ckpt/ref"
load = "/ckpt/run"
save = "/ckpt/run"
[grpo]
eps-clip = 0.2
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "run.toml"
    path.write_text(SMALL)
    return path


def plan(path: Path, *overrides: str, debug: Debug | None = None) -> Plan:
    return make_plan(read_run(path, overrides), run_dir=Path("/runs/one"), debug=debug)


def refusal(path: Path, *overrides: str) -> str:
    with pytest.raises(ConfigError) as error:
        plan(path, *overrides)
    return str(error.value)


def test_the_command_line_goes_before_the_file_and_keeps_a_flag_in_its_place(file: Path) -> None:
    made = plan(file, "--eps-clip", "0.1", "--lr", "1e-5", "--rollout-shuffle")
    assert made.value("--eps-clip") == "0.1"
    assert list(made.options).index("--eps-clip") < list(made.options).index("--lr")
    assert made.options["--rollout-shuffle"] == []


def test_a_switch_of_the_file_can_be_turned_off(file: Path) -> None:
    made = plan(file, "--colocate", "false", "--rollout-num-gpus", "2")
    assert "--colocate" not in made.options
    assert made.gpus_per_node == 4


def test_a_flag_of_the_command_line_goes_before_the_models_own(file: Path) -> None:
    made = plan(file, "--rotary-base", "42")
    assert made.options["--rotary-base"] == ["42"]
    assert made.arguments.count("--rotary-base") == 1


def test_arguments_of_a_model_of_ones_own_replace_those_of_the_named_one(file: Path) -> None:
    file.write_text(SMALL.replace('"qwen3-4B"', '"qwen3-4B"\nargs = ["--num-layers", "2"]'))
    assert plan(file).options["--num-layers"] == ["2"]


@pytest.mark.parametrize("name", ["moonlight", "deepseek-v3", "kimi-k2", "glm4.7-30B-A3B"])
def test_a_model_with_latent_attention_runs_without_the_flash_backend(
    file: Path, name: str
) -> None:
    assert "--multi-latent-attention" in model_arguments()[name]
    made = plan(file, "--attention-backend", "flash", "--model.name", name)
    assert "--attention-backend" not in made.options
    assert f"attention-backend flash is left out: {name} has multi-head latent attention" in (
        " ".join(made.notes)
    )


def test_a_model_without_latent_attention_keeps_the_flash_backend(file: Path) -> None:
    made = plan(file, "--attention-backend", "flash")
    assert made.value("--attention-backend") == "flash"
    assert not made.notes


def test_rules_refuse_the_flash_backend_with_latent_attention() -> None:
    options = {
        "--rollout-batch-size": ["1"],
        "--num-rollout": ["1"],
        "--rollout-max-context-len": ["9"],
        "--hf-checkpoint": ["/model"],
        "--prompt-data": ["/data/rows.jsonl"],
        "--colocate": [],
    }
    check_rules(options)
    with pytest.raises(ConfigError, match="attention-backend: flash does not run models"):
        check_rules({**options, "--multi-latent-attention": [], "--attention-backend": ["flash"]})


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ("--global-batch-size 7", "global-batch-size: 7 does not divide rollout-batch-size 4 x"),
        ("--num-steps-per-rollout 2", "global-batch-size: 8, but rollout-batch-size 4 x"),
        ("--over-sampling-batch-size 2", "over-sampling-batch-size: 2 is below"),
        ("--rollout-temperature 0", "rollout-temperature: 0 is no policy"),
        ("--tensor-model-parallel-size 4", "tensor-model-parallel-size 4 does not divide the 2"),
        (
            "--actor-num-gpus-per-node 3 --tensor-model-parallel-size 3",
            "tensor-model-parallel-size: 3 does not divide the model's num-attention-heads 32",
        ),
        ("--rollout-num-gpus 3 --rollout-num-gpus-per-engine 2", "rollout-num-gpus: 3 is no"),
        ("--colocate false", "rollout-num-gpus: is needed unless colocate is true"),
        ("--eval-interval 5", "eval-interval: needs eval-prompt-data"),
        ("--eval-prompt-data dev", "eval-prompt-data: takes pairs"),
        ("--eval-prompt-data dev a.tsv", "a.tsv: slime reads .jsonl and .parquet"),
        (
            f"{ASYNC} --eval-interval 5 --eval-prompt-data d d.jsonl",
            "eval-interval: 5, but slime's",
        ),
        ("--kl-coef 0.1 --kl-loss-coef 0.1", "kl-coef 0.1 and kl-loss-coef 0.1"),
        ("--use-dynamic-batch-size", "max-tokens-per-gpu: is needed"),
        ("--advantage-estimator reinforce_plus_plus", "needs normalize-advantages = true"),
        ("--use-rollout-logprobs --use-tis", "exclude each other"),
        ("--sglang-config a.yaml --rollout-external-engine-addrs h:1", "exclude each other"),
        ("--wandb-key abc", "wandb-key: everybody who sees the job"),
        ("--custom-config-path x.yaml", "custom-config-path: carries [tau]"),
        ("--eps-clip-hig 0.3", "did you mean 'eps-clip-high'?"),
        ("--tau.task-spilt dev", "--tau.task-spilt; did you mean --tau.task-split?"),
        ("--model.name qwen3-4b", "unknown model of slime 'qwen3-4b'; did you mean 'qwen3-4B'?"),
        ("--ray.address 10.0.0.1:6379", "address: must be the address of the Jobs API"),
        ("--ray.env-vars.WANDB_API_KEY abc", "WANDB_API_KEY looks like a secret"),
        ("--patienc 3", "did you mean 'patience'?"),
        ("--takover", "did you mean 'takeover'?"),
        ("--engine sglang", "--engine: is an option of a run on one machine, --backend local"),
        ("--env airline", "--env: is an option of the method: --tau.env"),
        ("--rays.address x", "unknown section 'rays'; did you mean 'ray'?"),
        ("--tau.env", "--tau.env: takes one value, found none"),
        ("--tau.user.strategy lmm", "--tau.user.strategy: "),
        ("--tau.user.base-url http://h/v1", "GEMINI_API_KEY would be sent to h"),
        ("--tau.user.user-cache r.jsonl", "tau.user.user-cache: is read and written on the nodes"),
        ("--tau.tool-format qwen26", "unknown format of tool calls 'qwen26'; did you mean"),
        ("--colocate maybe", "--colocate: takes nothing, true or false, found 'maybe'"),
        ("stray --lr 1", "'stray' belongs to no flag"),
    ],
)
def test_what_cannot_work_is_refused_with_the_mend(
    file: Path, overrides: str, message: str
) -> None:
    assert message in refusal(file, *overrides.split())


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ("eps-clip =", "eps-clp =", ": [grpo] unknown flag of slime 'eps-clp'; did you mean"),
        ("[grpo]", '[grpo]\nenv = "retail"', "[grpo] env: is an option of [tau], the method"),
        ("[model]", "lr = 1e-6\n[model]", ": lr: stands in no section, and a run on slime has"),
        ("[grpo]", "[grop]", "unknown section [grop]; did you mean 'grpo'?"),
        ("\n[model]", "grpo = 3\n[model]", "grpo: must be a section, [grpo]"),
        ("eps-clip = 0.2", "num-rollout = 3", "num-rollout stands in [rollout] and in [grpo]"),
        ("eps-clip = 0.2", "eps-clip = 'x'", "[grpo] eps-clip: must be a number, found 'x'"),
        ('name = "qwen3-4B"', "", "[model] name: is needed, or args"),
        ("[tau]", "", "say which method it is for: --method NAME, or a section [NAME]"),
        ("[tau]", "[tau]\n[agentflow]", "unknown section [agentflow]"),
        (
            "[tau]",
            "[tau.user]\nmodle = 'x'",
            "[tau] user: unknown key 'modle'; did you mean 'model'",
        ),
        ("[tau]", "[tau]\nuser = 'x'", "[tau] user: "),
        ("[grpo]", "[grpo", "not valid TOML"),
        ("save = ", "save-interval = 5\nsaves = ", "unknown flag of slime 'saves'"),
        ("rollout-batch-size = 4", "", "rollout-batch-size: is needed"),
        ("num-rollout = 2", "", "num-rollout: is needed (or num-epoch)"),
        ('hf-checkpoint = "/model"', "", "hf-checkpoint: is needed"),
        ('prompt-data = "/data/rows.jsonl"', "", "prompt-data: is needed"),
        ("rollout-max-context-len = 4096", "", "rollout-max-context-len: is needed, the tokens"),
        ('save = "/ckpt/run"', "save-interval = 5", "save-interval: needs save"),
        ('ref-load = "/ckpt/ref"', "use-kl-loss = true", "ref-load: is needed for the KL"),
    ],
)
def test_a_wrong_file_is_refused_with_section_and_key(
    file: Path, before: str, after: str, message: str
) -> None:
    assert before in SMALL
    text = SMALL.replace("[grpo]\neps-clip = 0.2\n", "") if after.startswith("grpo =") else SMALL
    file.write_text(text.replace(before, after, 1))
    assert message in refusal(file)


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    assert refusal(tmp_path / "no.toml").endswith("no.toml: No such file or directory")


def test_the_tau_section_reaches_the_hooks_through_slimes_custom_config(file: Path) -> None:
    made = plan(file, "--tau.env", "airline", "--tau.task-split", "test", "--tau.max-turns", "9")
    assert made.value("--custom-config-path") == "turnwise.json"
    hooks = json.loads(custom_config_text(made))["turnwise"]
    assert (hooks["method"], hooks["env"], hooks["max_turns"]) == ("tau", "airline", 9)


def test_the_customers_options_reach_the_hooks_whole(file: Path) -> None:
    words = "--tau.user.base-url http://h:1/v1 --tau.user.model m --tau.user.spend-cap-usd 5"
    words += " --tau.user.write-price 2 --tau.user.user-cache /r.jsonl"
    made = plan(file, *words.split(), "--tau.user.key-env", "")
    hooks = dict(json.loads(custom_config_text(made))["turnwise"])
    user = make_method(hooks.pop("method"), hooks).options.user
    assert (user.base_url, user.model, user.key_env) == ("http://h:1/v1", "m", "")
    assert (user.spend_cap_usd, user.write_price, user.user_cache) == (5, 2, Path("/r.jsonl"))
    assert user.deadline_s == 110


def test_a_command_of_one_method_refuses_the_file_of_another(file: Path) -> None:
    assert read_run(file, method="tau").method == "tau"
    with pytest.raises(ConfigError, match=r"\[tau\]"):
        read_run(file, method="agentflow")


@pytest.fixture
def fanning(file: Path) -> Path:
    """A run's file of a method whose episodes have several rows."""
    assert find_method("agentflow").fans_out
    rows = "[perf]\nuse-dynamic-batch-size = true\nmax-tokens-per-gpu = 4096\n"
    file.write_text(
        SMALL.replace("[tau]", '[agentflow]\nhelpers = "rules"\nobjective = "turn-mean"') + rows
    )
    return file


@pytest.mark.parametrize(
    ("objective", "flagged"),
    [("turn-mean", False), ("rollout-token-mean", False), ("global-token-mean", True)],
)
def test_a_methods_objective_reaches_the_hooks_and_becomes_the_flag_of_slime_that_gives_it(
    fanning: Path, objective: str, flagged: bool
) -> None:
    made = plan(fanning, "--agentflow.objective", objective)
    assert ("--calculate-per-token-loss" in made.options) == flagged
    assert made.value("--rollout-data-postprocess-path") == "turnwise.slime.train_data"
    hooks = json.loads(custom_config_text(made))["turnwise"]
    assert (hooks["method"], hooks["objective"]) == ("agentflow", objective)


def test_a_method_of_one_row_an_episode_may_have_an_objective_and_partial_rollouts(
    file: Path,
) -> None:
    made = plan(file, "--tau.objective", "global-token-mean", "--partial-rollout")
    assert {"--calculate-per-token-loss", "--partial-rollout"} <= made.options.keys()
    assert "use-dynamic-batch-size: is needed" in refusal(file, "--tau.on-rewrite", "fork")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--agentflow.objective turn-meen", "objective"),
        (
            "--agentflow.objective global-token-mean --calculate-per-token-loss",
            "calculate-per-token-loss: [agentflow] objective global-token-mean",
        ),
        ("--rollout-data-postprocess-path a.b", "rollout-data-postprocess-path: [agentflow]"),
        ("--use-dynamic-batch-size false", "use-dynamic-batch-size: is needed, with max-tokens"),
        ("--partial-rollout", "partial-rollout: keeps unfinished groups as single rows"),
        ("--group-rm", "group-rm: writes a reward into a single row of each episode"),
        (
            ASYNC,
            "rollout-function-path: slime's fully asynchronous rollout takes single rows",
        ),
    ],
)
def test_an_objective_and_a_flag_that_contradicts_it_are_refused(
    fanning: Path, words: str, message: str
) -> None:
    assert message in refusal(fanning, *words.split())


OWN = SMALL.replace("[tau]\n", "")


def test_a_method_of_ones_own_has_its_argument_list(file: Path) -> None:
    file.write_text(OWN + "[method]\non-rewrite = 'error'\n")
    name = "examples.order_desk:OrderDesk"
    made = make_plan(read_run(file, method=name), run_dir=Path("/runs/one"))
    hooks = json.loads(custom_config_text(made))["turnwise"]
    assert (hooks["method"], hooks["on_rewrite"]) == (name, "error")
    assert made.value("--custom-generate-function-path") == "turnwise.slime.generate"
    by_name = OWN + "[order_desk]\non-rewrite = 'error'\n"
    file.write_text(by_name)
    words = ["--order_desk.on-rewrite", "keep"]
    again = make_plan(read_run(file, words, method=name), run_dir=Path("/runs/one"))
    assert again.arguments == made.arguments
    assert again.custom_config["turnwise"]["on_rewrite"] == "keep"


def test_the_hooks_are_told_the_run_folder_and_the_access_log_is_off(file: Path) -> None:
    made = plan(file)
    assert made.custom_config["turnwise_run_dir"] == "/runs/one"
    assert made.value("--sglang-log-level-http") == "warning"
    assert plan(file, "--sglang-log-level-http", "info").value("--sglang-log-level-http") == "info"


def test_the_limits_of_a_run_that_goes_wrong_come_from_the_file_or_the_command_line(
    file: Path,
) -> None:
    file.write_text(SMALL + "[stop]\nmax-logprob-diff = 0.3\n")
    assert read_run(file).stop.max_logprob_diff == 0.3
    stop = read_run(file, ["--max-logprob-diff", "0.2", "--patience", "40"]).stop
    assert (stop.max_logprob_diff, stop.patience) == (0.2, 40)
    assert "--patience: " in refusal(file, "--patience", "0")
    assert "did you mean --stop.patience?" in refusal(file, "--stop.patients", "3")


def test_the_filter_of_the_hooks_is_the_default(file: Path) -> None:
    made = plan(file)
    assert made.options["--dynamic-sampling-filter-path"] == ["turnwise.slime.dynamic_filter"]


def test_a_hook_of_ones_own_takes_the_place_of_ours(file: Path) -> None:
    made = plan(file, "--custom-rm-path", "mine.reward")
    assert made.options["--custom-rm-path"] == ["mine.reward"]
    assert made.options["--custom-generate-function-path"] == ["turnwise.slime.generate"]


def test_a_debug_rollout_trains_and_evaluates_nothing_and_keeps_its_rollouts(file: Path) -> None:
    made = plan(
        file,
        *"--eval-interval 5 --eval-prompt-data dev d.jsonl --save-interval 3".split(),
        *"--rollout-external-engine-addrs host:30000".split(),
        debug="rollout",
    )
    assert made.options["--debug-rollout-only"] == []
    assert made.value("--num-rollout") == "1"
    assert made.value("--save-debug-rollout-data") == "/runs/one/rollouts/{rollout_id}.pt"
    assert not {"--eval-interval", "--save-interval"} & made.options.keys()
    assert not any("starts the engines" in note for note in made.notes)


def test_a_debug_replay_trains_on_the_rollouts_that_a_debug_rollout_kept(file: Path) -> None:
    made = plan(file, debug="replay")
    assert made.options["--debug-train-only"] == []
    assert made.value("--load-debug-rollout-data") == "/runs/one/rollouts/{rollout_id}.pt"
    other = plan(file, "--load-debug-rollout-data", "/x/{rollout_id}.pt", debug="replay")
    assert other.value("--load-debug-rollout-data") == "/x/{rollout_id}.pt"


def test_a_run_that_would_not_resume_itself_is_noted(file: Path) -> None:
    assert not plan(file).notes
    assert "it would not resume" in plan(file, "--save", "/ckpt/other").notes[0]
    assert not plan(file, "--save", "/ckpt/run/").notes


def test_the_entry_point_is_one_shell_command_whatever_the_words_hold(file: Path) -> None:
    made = plan(file, "--load", "/a b/$HOME;rm", "--train-env-vars", '{"A": "x y"}')
    assert "'/a b/$HOME;rm'" in made.entrypoint
    assert """'{"A": "x y"}'""" in made.entrypoint
    assert made.entrypoint.startswith("exec python3 /root/slime/train.py --")


def test_the_jobs_environment_has_megatron_on_the_path_and_what_the_file_adds(file: Path) -> None:
    made = plan(file, "--ray.env-vars.NCCL_DEBUG", "INFO", "--ray.megatron-dir", "/megatron")
    assert made.environment["PYTHONPATH"] == "/megatron"
    assert made.environment["NCCL_DEBUG"] == "INFO"
    assert made.environment["CUDA_DEVICE_MAX_CONNECTIONS"] == "1"


@given(st.text())
def test_no_model_name_raises_anything_but_a_config_error(name: str) -> None:
    with pytest.raises(ConfigError):
        ModelConfig(name=name + "?")

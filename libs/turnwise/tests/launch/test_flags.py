import json
import os
import shutil
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from turnwise.config import ConfigError
from turnwise.launch.flags import (
    Flag,
    NoAnswer,
    ask_slime,
    check_arguments,
    find_flag,
    model_arguments,
    slime_flags,
    split_arguments,
    to_arguments,
    versions,
)
from turnwise.launch.make_tables import flag_rows, model_rows

SHARED = os.environ.get("TURNWISE_SHARED_DATA")


def refusal(options: dict[str, object]) -> str:
    with pytest.raises(ConfigError) as error:
        to_arguments(options, "grpo")
    return str(error.value)


@pytest.mark.parametrize(
    ("wrong", "right"),
    [
        ("eps-clip-hig", "eps-clip-high"),
        ("n-sample-per-prompt", "n-samples-per-prompt"),
        ("tensor-model-paralel-size", "tensor-model-parallel-size"),
        ("sglang-mem-fraction", "sglang-mem-fraction-static"),
        ("kl_loss_coef", "kl-loss-coef"),
    ],
)
def test_a_misspelt_flag_is_refused_with_the_nearest_name(wrong: str, right: str) -> None:
    assert refusal({wrong: 1}) == f"[grpo] unknown flag of slime '{wrong}'; did you mean '{right}'?"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"eps-clip": "wide"}, "eps-clip: must be a number, found 'wide'"),
        ({"num-rollout": 1.5}, "num-rollout: must be a whole number, found '1.5'"),
        ({"num-rollout": True}, "num-rollout: must be a whole number, found True"),
        ({"num-rollout": [1, 2]}, "num-rollout: takes one value, found 2"),
        ({"colocate": "yes"}, "colocate: must be true or false, found 'yes'"),
        ({"kl-loss-type": "k9"}, "kl-loss-type: must be one of k1, k2, k3, low_var_kl, found 'k9'"),
        ({"eval-prompt-data": []}, "eval-prompt-data: takes one value or more, found 0"),
        ({"rampup-batch-size": [1, 2]}, "rampup-batch-size: takes 3 values, found 2"),
        ({"train-env-vars": "{"}, "train-env-vars: must be JSON, found '{'"),
        (
            {"sglang-context-length": "32x"},
            "sglang-context-length: must be a whole number, or one with k, M or G, found '32x'",
        ),
        ({"load": ""}, "load: must be text, found ''"),
        ({"load": "--save"}, "load: must be text, found '--save'"),
    ],
)
def test_a_wrong_value_is_refused_with_what_is_allowed(
    options: dict[str, object], message: str
) -> None:
    assert refusal(options) == f"[grpo] {message}"


def test_values_become_the_words_that_argparse_reads() -> None:
    assert to_arguments(
        {
            "colocate": True,
            "sequence-parallel": False,
            "lr": 1e-6,
            "eval-prompt-data": ["dev", "dev.jsonl"],
            "train-env-vars": {"A": "1"},
            "sglang-context-length": "32k",
            "lazy-mpu-init": True,
        },
        "misc",
    ) == [
        "--colocate",
        *("--lr", "1e-06"),
        *("--eval-prompt-data", "dev", "dev.jsonl"),
        *("--train-env-vars", '{"A": "1"}'),
        *("--sglang-context-length", "32k"),
        *("--lazy-mpu-init", "true"),
    ]


def test_a_flag_given_twice_is_refused_but_one_that_repeats_is_not() -> None:
    with pytest.raises(ConfigError, match=r"--lr is given twice: \['1'\] and \['2'\]"):
        check_arguments(["--lr", "1", "--lr", "2"])
    words = ["--rollout-sample-hook-path", "a.b", "--rollout-sample-hook-path", "c.d"]
    assert check_arguments(words) == {"--rollout-sample-hook-path": ["a.b", "c.d"]}


def test_a_word_without_a_flag_and_a_switch_with_a_value_are_refused() -> None:
    with pytest.raises(ConfigError, match="'train.py' belongs to no flag"):
        check_arguments(["train.py", "--lr", "1"])
    with pytest.raises(ConfigError, match="colocate: takes no value, found '2'"):
        check_arguments(["--colocate", "2"])


def test_a_negative_number_is_a_value() -> None:
    assert check_arguments(["--eval-top-k", "-1"]) == {"--eval-top-k": ["-1"]}


@pytest.mark.parametrize("name", sorted(model_arguments()))
def test_every_models_arguments_pass_the_table(name: str) -> None:
    assert "--num-layers" in check_arguments(model_arguments()[name])


numbers = st.sampled_from(
    [flag for flag in slime_flags().values() if flag.kind == "int" and not flag.choices]
)


@given(numbers, st.integers(min_value=0, max_value=10**9))
def test_whatever_is_written_from_options_reads_back_the_same(flag: Flag, value: int) -> None:
    bare = flag.name.removeprefix("--")
    count = flag.count
    many = [value] * (int(count) if count.isdigit() else 2 if count else 1)
    words = to_arguments({bare: many if count else value}, "misc")
    assert check_arguments(words) == {f"--{bare}": [str(one) for one in many]}


@given(st.lists(st.text(st.characters(exclude_characters="="), min_size=1)))
def test_splitting_loses_no_word(words: list[str]) -> None:
    argv = ["--first", *words]
    again = [word for name, values in split_arguments(argv) for word in (name, *values)]
    assert again == argv


def test_the_versions_that_the_table_was_made_from_are_known() -> None:
    assert {"slime", "megatron", "sglang"} == set(versions())
    assert find_flag("--eps-clip-high").owner == "slime"
    assert find_flag("use-gated-attention").owner == "image"


def test_a_table_row_keeps_type_choices_and_number_of_values(tmp_path: Path) -> None:
    facts = {
        "slime_commit": "a",
        "megatron_commit": "b",
        "sglang_version": "1",
        "flags": {
            "--help": {"action": "_HelpAction", "source": "sglang"},
            "--n": {"action": "_StoreAction", "source": "slime", "type": "int", "nargs": "+"},
            "--off": {"action": "_StoreFalseAction", "source": "slime"},
            "--hook": {"action": "_AppendAction", "source": "slime", "nargs": 1},
            "--kl": {"action": "_StoreAction", "source": "slime", "choices": ["k1", "k2"]},
        },
    }
    scripts = tmp_path / "scripts/models"
    scripts.mkdir(parents=True)
    (scripts / "m.sh").write_text('N=3\nMODEL_ARGS=(--swish --layers $N --freq "[0, 1]" --tied)')
    models = list(model_rows(tmp_path, "a"))
    assert models == ["# slime a", "m\t--swish --layers 3 --freq [0,1] --tied"]
    assert list(flag_rows(facts, models))[3:] == [
        "--hook\tslime\ttext\t1 append",
        "--kl\tslime\tchoice\t\tk1 k2",
        "--n\tslime\tint\t+",
        "--off\tslime\tswitch",
        "--swish\timage\tswitch",
        "--tied\timage\tswitch",
    ]


@pytest.mark.skipif(SHARED is None, reason="TURNWISE_SHARED_DATA is not set")
def test_the_shipped_table_holds_every_fact() -> None:
    facts = json.loads(Path(SHARED or "", "slime_flags.json").read_text(encoding="utf-8"))
    names = set(facts["flags"]) - {"--help"}
    assert names == {name for name, flag in slime_flags().items() if flag.owner != "image"}
    for name in names:
        fact = facts["flags"][name]
        assert slime_flags()[name].choices == tuple(str(c) for c in fact.get("choices", ())), name
        assert slime_flags()[name].owner == fact["source"]
    models = json.loads(Path(SHARED or "", "slime_model_args.json").read_text(encoding="utf-8"))
    for name, words in models["model_args"].items():
        assert model_arguments()[name] == tuple(words)


@pytest.fixture
def parser(tmp_path: Path) -> dict[str, str]:
    """A stand-in slime whose parser knows one flag and has one rule."""
    package = tmp_path / "slime" / "utils"
    package.mkdir(parents=True)
    (package.parent / "__init__.py").touch()
    (package / "__init__.py").touch()
    (package / "arguments.py").write_text(
        "import argparse\n"
        "def parse_args():\n"
        "    parser = argparse.ArgumentParser()\n"
        "    parser.add_argument('--lr', type=float)\n"
        "    args, _ = parser.parse_known_args()\n"
        "    assert args.lr < 1, 'lr must be below 1'\n"
    )
    return {"PYTHONPATH": str(tmp_path), "PATH": os.environ.get("PATH", os.defpath)}


def test_the_installed_slime_has_the_last_word(parser: dict[str, str]) -> None:
    assert ask_slime(["--lr", "0.1", "--other"], sys.executable, parser) == ""
    assert "lr must be below 1" in ask_slime(["--lr", "2"], sys.executable, parser)
    assert "invalid float value: 'x'" in ask_slime(["--lr", "x"], sys.executable, parser)


def test_a_node_without_slime_or_python_says_so(tmp_path: Path) -> None:
    environment = {"PATH": os.environ.get("PATH", os.defpath)}
    with pytest.raises(NoAnswer, match="not be loaded: ModuleNotFoundError: No module named 'sli"):
        ask_slime([], shutil.which("python3") or sys.executable, environment)
    missing = str(tmp_path / "python3")
    with pytest.raises(NoAnswer, match=f"{missing}: No such file or directory"):
        ask_slime([], missing, environment)


def test_a_parser_that_hangs_is_given_up(tmp_path: Path, parser: dict[str, str]) -> None:
    (tmp_path / "slime/utils/arguments.py").write_text("import time\ntime.sleep(60)\n")
    with pytest.raises(NoAnswer, match="gave no answer in 0 s"):
        ask_slime([], sys.executable, parser, timeout_s=0.5)


@pytest.mark.parametrize(
    "content",
    [
        "import no_such_module",
        "raise OSError('libcuda.so.1')",
        "import os; os.kill(os.getpid(), 9)",
    ],
)
def test_a_parser_that_can_not_be_loaded_has_refused_no_flag(
    tmp_path: Path, parser: dict[str, str], content: str
) -> None:
    (tmp_path / "slime/utils/arguments.py").write_text(content)
    with pytest.raises(NoAnswer):
        ask_slime([], sys.executable, parser)

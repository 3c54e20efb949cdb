"""Configuration: files, overrides, and one clear error for everything else."""

from pathlib import Path

import pytest
from pydantic import Field, model_validator
from turnwise.command import PreflightError, RunError, run_command
from turnwise.config import CommandConfig, Config, ConfigError, parse_args


class User(Config):
    model: str = "offline"
    """The user's model."""


class Train(CommandConfig):
    lr: float = Field(default=1e-3, gt=0)
    """Learning rate."""
    rollout_batch_size: int = Field(default=8, ge=1)
    """Prompts a step."""
    user: User = User()
    """The user."""


class Evaluate(CommandConfig):
    policy: str
    """Required."""
    trials: int = Field(default=4, ge=1)
    """Trials."""
    half: bool = False
    """Needs two trials."""

    @model_validator(mode="after")
    def _together(self) -> "Evaluate":
        if self.half and self.trials < 2:
            raise ValueError("half needs two trials")
        return self


def parse(*argv: str) -> Train:
    return parse_args(Train, argv, prog="train", description="Trains.")


def write(folder: Path, text: str) -> str:
    path = folder / "run.toml"
    path.write_text(text)
    return str(path)


def test_the_command_line_goes_before_the_file_and_the_file_before_the_default(
    tmp_path: Path,
) -> None:
    path = write(tmp_path, 'lr = 0.5\nrollout-batch-size = 4\n[user]\nmodel = "file"\n')
    config = parse("--config", path, "--lr", "0.25", "--user.model", "line")
    assert (config.lr, config.rollout_batch_size, config.user.model) == (0.25, 4, "line")
    assert parse("--config", path).user.model == "file"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("learning-rat = 1", "unknown key 'learning-rat'"),
        ("rollout_batch_size = 1", "did you mean 'rollout-batch-size'"),
        ("[user]\nmodl = 'x'", "unknown key 'modl'; did you mean 'model'"),
        ("lr = -1.0", "lr: Input should be greater than 0, found -1.0"),
        ("lr = [", "not valid TOML"),
        ("[user]\nmodel = 3", "user.model: Input should be a valid string, found 3"),
    ],
)
def test_a_bad_file_names_itself_the_key_and_what_to_do(
    tmp_path: Path, text: str, message: str
) -> None:
    path = write(tmp_path, text)
    with pytest.raises(ConfigError) as caught:
        parse("--config", path)
    assert path in str(caught.value)
    assert message in str(caught.value)


def test_what_a_file_leaves_out_may_come_from_the_command_line(tmp_path: Path) -> None:
    path = write(tmp_path, "half = true\ntrials = 1\n")
    argv = ["--config", path, "--policy", "p", "--trials", "2"]
    config = parse_args(Evaluate, argv, prog="e", description="E.")
    assert (config.policy, config.trials, config.half) == ("p", 2, True)


def test_options_that_contradict_each_other_exit_with_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = write(tmp_path, "half = true\n")
    with pytest.raises(SystemExit) as caught:
        argv = ["--config", path, "--policy", "p", "--trials", "1"]
        parse_args(Evaluate, argv, prog="e", description="E.")
    assert caught.value.code == 2
    assert "half needs two trials" in capsys.readouterr().err


def test_a_required_option_that_is_not_given_is_named(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit) as caught:
        parse_args(Evaluate, [], prog="e", description="E.")
    assert caught.value.code == 2
    assert "--policy" in capsys.readouterr().err


def test_a_missing_file_is_named() -> None:
    with pytest.raises(ConfigError, match="absent.toml: No such file"):
        parse("--config", "absent.toml")


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--rolout-batch-size", "4"], "--rollout-batch-size"),
        (["--lr", "-1"], "lr: Input should be greater than 0, found -1.0"),
        (["--lr", "fast"], "--lr"),
    ],
)
def test_a_bad_option_exits_with_2_and_says_which(
    argv: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as caught:
        parse(*argv)
    assert caught.value.code == 2
    assert words in capsys.readouterr().err


def test_a_configuration_cannot_be_changed_after_the_start() -> None:
    with pytest.raises(ValueError, match="frozen"):
        parse().lr = 1.0  # type: ignore[misc]


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (ConfigError("x"), 2),
        (PreflightError("x"), 3),
        (RunError("x"), 4),
        (KeyboardInterrupt(), 130),
    ],
)
def test_each_failure_has_its_exit_code(
    error: BaseException, code: int, capsys: pytest.CaptureFixture[str]
) -> None:
    def command(argv: object) -> int:
        raise error

    assert run_command(command, []) == code
    assert len(capsys.readouterr().err.strip().splitlines()) == 1


def test_a_bug_is_not_dressed_up_as_a_user_error() -> None:
    def command(argv: object) -> int:
        raise KeyError("bug")

    with pytest.raises(KeyError):
        run_command(command, [])

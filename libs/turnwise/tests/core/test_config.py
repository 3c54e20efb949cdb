"""Configuration: files, overrides, and one clear error for everything else."""

from pathlib import Path
from typing import Literal

import pytest
from pydantic import Field, model_validator
from turnwise.arguments import parse_args, parse_sections
from turnwise.command import PreflightError, RunError, run_command
from turnwise.config import CommandConfig, Config, ConfigError


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


@pytest.mark.parametrize("value", ["inf", "nan", "-inf", "1e999"])
def test_a_number_that_is_not_finite_is_refused_from_line_and_file(
    value: str, tmp_path: Path
) -> None:
    with pytest.raises(ConfigError, match="finite"):
        Train(lr=float(value))
    with pytest.raises((ConfigError, SystemExit)):
        parse("--lr", value)
    with pytest.raises((ConfigError, SystemExit)):
        parse("--config", write(tmp_path, f"lr = {'inf' if value == '1e999' else value}\n"))


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


def test_options_that_contradict_each_other_are_refused(tmp_path: Path) -> None:
    path = write(tmp_path, "half = true\n")
    argv = ["--config", path, "--policy", "p", "--trials", "1"]
    with pytest.raises(ConfigError, match="half needs two trials"):
        parse_args(Evaluate, argv, prog="e", description="E.")


def test_a_required_option_that_is_not_given_is_named() -> None:
    with pytest.raises(ConfigError, match="--policy: is needed"):
        parse_args(Evaluate, [], prog="e", description="E.")


def test_a_missing_file_is_told_as_it_was_named_with_the_files_that_there_are(
    tmp_path: Path,
) -> None:
    presets = tmp_path / "presets"
    presets.mkdir()
    for name in ("laptop.toml", "large.toml"):
        presets.joinpath(name).touch()

    def refusal(*argv: str, default: str = "laptop.toml") -> str:
        with pytest.raises(ConfigError) as caught:
            parse_sections(
                Train, {}, argv, prog="my:train", description="", default_file=presets / default
            )
        return str(caught.value)

    both = f"there are {presets}/laptop.toml, {presets}/large.toml"
    absent = tmp_path / "absent.toml"
    assert refusal("--config", str(absent)) == (
        f"--config {absent}: No such file or directory; {both}"
    )
    assert refusal("--config", "larg").endswith(f"; did you mean {presets}/large.toml?")
    assert refusal("--config", str(presets)) == f"--config {presets}: Is a directory; {both}"
    assert refusal(default="none.toml").startswith(
        f"the preset of my:train, {presets}/none.toml: No such file or directory; {both}"
    )


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--rolout-batch-size", "4"], "did you mean --rollout-batch-size"),
        (["--lr", "-1"], "--lr: Input should be greater than 0, found '-1'"),
        (["--lr=fast"], "--lr: Input should be a valid number"),
        (["--lr", "inf"], "--lr: Input should be a finite number"),
        (["--lr"], "--lr: takes one value, found none"),
        (["--lr", "1", "2"], "--lr: takes one value, found '1 2'"),
        (["--user.modl", "x"], "did you mean --user.model"),
        (["--lr.x", "1"], "lr has no keys"),
        (["train"], "'train' belongs to no option"),
    ],
)
def test_a_bad_option_says_which_and_what_to_do(argv: list[str], words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse(*argv)
    assert words in str(caught.value)


class Model(Config):
    name: str
    """The model."""
    temperature: float = 1.0
    """Of its draws."""


class Method(Config):
    tools: tuple[str, ...] = ("one", "two")
    """Tools."""
    models: dict[str, str] = Field(default_factory=dict)
    """By role."""
    base: Model | None = None
    """Every role."""
    prompt: str = "full"
    """The prompt."""
    lr: float = 3.0
    """Also a name of the other options."""
    experts: dict[str, Model] = Field(default_factory=dict)
    """By name."""
    order: Literal["fixed", "random"] = "fixed"
    """Of the tools."""


def sections(*argv: str) -> tuple[Train, Method]:
    found = parse_sections(
        Train,
        {"flow": Method},
        argv,
        prog="train",
        description="Trains.",
        aliases={"method": "flow"},
    )
    return found.options, found.sections["flow"]


@pytest.mark.parametrize("section", ["flow", "method"])
def test_a_key_means_the_same_in_a_section_of_the_file_and_on_the_command_line(
    tmp_path: Path, section: str
) -> None:
    path = write(
        tmp_path,
        f'lr = 0.5\n[{section}]\ntools = ["a"]\nlr = 2.0\n[{section}.base]\nname = "m"\n'
        f'[{section}.models]\njudge = "j"\n',
    )
    options, method = sections("--config", path)
    line = sections(
        "--lr", "0.5", f"--{section}.tools", "a", f"--{section}.lr", "2",
        f"--{section}.base.name", "m", f"--{section}.models.judge", "j",
    )  # fmt: skip
    assert line[1] == method and method.base == Model(name="m") and method.tools == ("a",)
    assert (options.lr, line[0].lr) == (0.5, 0.5)


def test_a_key_of_one_section_needs_not_name_it_and_the_options_go_first(tmp_path: Path) -> None:
    options, method = sections("--prompt", "compact", "--lr", "0.25", "--tools", "a", "b")
    assert (method.prompt, options.lr, method.lr, method.tools) == (
        "compact",
        0.25,
        3.0,
        ("a", "b"),
    )
    path = write(tmp_path, 'prompt = "compact"\n[flow.base]\nname = "m"\n')
    assert sections("--config", path, "--base.temperature", "0.5")[1].base == Model(
        name="m", temperature=0.5
    )


@pytest.mark.parametrize(
    ("argv", "words"),
    [
        (["--flow.tool", "a"], "unknown option --flow.tool; did you mean --flow.tools?"),
        (["--promt", "a"], "unknown option --promt; did you mean --prompt?"),
        (
            ["--base.name", "m", "--base.temperature", "x"],
            "--base.temperature: Input should be a valid number",
        ),
        (["--flow.base.temperature", "1"], "--flow.base.name: is needed"),
        (["--flow.user.model", "m"], "--flow.user.model: is an option of the run, not of flow"),
        (["--other.prompt", "a"], "--other.KEY: unknown section [other]; there is [flow]"),
    ],
)
def test_a_bad_option_of_a_section_is_named_as_it_was_written(argv: list[str], words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        sections(*argv)
    assert words in str(caught.value)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "[flow.experts.large-1]\nnam = 'm'",
            "flow.experts.large-1.nam: unknown key; did you mean",
        ),
        ("[flow]\norder = 'rnadom'", "found 'rnadom'; did you mean 'random'?"),
        ("flow = 3", "flow: must be a section, [flow], found 3"),
        ("[flwo]\nlr = 1.0", "unknown section [flwo]; did you mean [flow]?"),
        (
            "[flow]\nuser.model = 'm'",
            "of the run, not of flow: write user before",
        ),
        ("[other_method]\nprompt = 'a'", "unknown section [other_method]; there is [flow]"),
        ("[flow.bsae]\nname = 'm'", "[flow] unknown key 'bsae'; did you mean 'base'?"),
    ],
)
def test_a_wrong_name_anywhere_in_a_file_is_told_with_the_file_and_the_nearest(
    tmp_path: Path, text: str, words: str
) -> None:
    path = write(tmp_path, text)
    with pytest.raises(ConfigError) as caught:
        sections("--config", path, "--lr", "0.5")
    assert str(caught.value).startswith(f"{path}: ") and words in str(caught.value)


def test_what_a_run_that_goes_on_began_with_is_told_with_its_file() -> None:
    defaults = {"lr": 0.5, "flow": {"order": "fixed", "later_option": 3}}
    with pytest.raises(ConfigError, match=r"^run/config\.json: flow\.later-option: unknown key"):
        parse_sections(
            Train, {"flow": Method}, ["--lr", "1"], prog="train", description="",
            defaults=defaults, origin=Path("run/config.json"),
        )  # fmt: skip


def test_help_has_every_option_with_its_meaning_and_default(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit) as caught:
        sections("--lr", "1", "--help")
    assert caught.value.code == 0
    out = capsys.readouterr().out
    assert "--lr FLOAT\n    Learning rate. (default: 0.001)" in out
    assert "--flow.tools STR ...\n    Tools. (default: one two)" in out
    assert "--flow.base.name STR\n    The model. (required)" in out
    assert "--user.model STR" in out


def test_a_list_that_is_given_takes_the_place_of_the_files(tmp_path: Path) -> None:
    path = write(tmp_path, '[flow]\ntools = ["a", "b"]\n')
    assert sections("--config", path, "--tools", "c")[1].tools == ("c",)


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


def test_the_help_names_the_file_whose_values_go_before_the_defaults(
    capsys: pytest.CaptureFixture[str],
) -> None:
    for preset in (Path("laptop.toml"), None):
        with pytest.raises(SystemExit):
            parse_sections(Config, {}, ["-h"], prog="p", description="D.", default_file=preset)
        assert ("Without --config laptop.toml is read" in capsys.readouterr().out) is bool(preset)

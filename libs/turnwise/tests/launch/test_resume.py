from pathlib import Path

import pytest
from turnwise.command import PreflightError
from turnwise.launch.resume import made_again, starting_point


@pytest.fixture
def reference(tmp_path: Path) -> str:
    folder = tmp_path / "ref"
    folder.mkdir()
    (folder / "config.json").write_text('{"model_type": "qwen3"}')
    return str(folder)


def test_a_first_run_says_why_it_is_one_and_where_it_starts(tmp_path: Path, reference: str) -> None:
    absent = tmp_path / "absent"
    assert starting_point(str(absent), reference) == (
        f"first run: --load {absent} does not exist yet, so training starts from the reference "
        f"model {reference}"
    )
    (tmp_path / "empty").mkdir()
    assert "is empty, so training" in starting_point(str(tmp_path / "empty"), reference)
    assert "there is no --load, so training starts from the" in starting_point(None, reference)


@pytest.mark.parametrize(
    ("name", "said"),
    [("gone", "gone: does not exist"), ("file", "file: is a file"), ("empty", "empty: is empty")],
)
def test_a_reference_that_is_not_there_is_named_before_anything_starts(
    tmp_path: Path, name: str, said: str
) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "empty").mkdir()
    with pytest.raises(PreflightError, match=f"--ref-load .*{said}"):
        starting_point(None, str(tmp_path / name))
    with pytest.raises(PreflightError, match="there is no --ref-load"):
        starting_point(None, None)


def test_a_run_that_resumes_needs_its_reference_for_the_kl_alone(tmp_path: Path) -> None:
    (tmp_path / "latest_checkpointed_iteration.txt").write_text("19\n")
    (tmp_path / "iter_0000019").mkdir()
    assert "resumes" in starting_point(str(tmp_path), "/gone")
    with pytest.raises(PreflightError, match="--ref-load /gone: does not exist"):
        starting_point(str(tmp_path), "/gone", needs_reference=True)


def test_a_folder_with_a_checkpoint_is_resumed_at_its_iteration(tmp_path: Path) -> None:
    (tmp_path / "latest_checkpointed_iteration.txt").write_text("19\n")
    (tmp_path / "iter_0000019").mkdir()
    assert starting_point(str(tmp_path), "/ref") == f"resumes from --load {tmp_path}, iteration 19"


def test_steps_after_the_checkpoint_are_said_to_be_lost(tmp_path: Path) -> None:
    load, folder = tmp_path / "ckpt", tmp_path / "run"
    load.mkdir()
    folder.mkdir()
    assert made_again(str(load), folder) == made_again(None, folder) == ""
    (load / "latest_checkpointed_iteration.txt").write_text("1")
    assert made_again(str(load), folder) == ""
    rows = [f'{{"kind": "train", "step": {step}}}\n' for step in (1, 2, 3, 4)]
    for count, said in ((2, ""), (3, "step 3"), (4, "steps 3 to 4")):
        (folder / "metrics.jsonl").write_text("".join(rows[:count]))
        found = made_again(str(load), folder)
        assert found == (f"; lost and made again: {said}" if said else "")


def test_a_tracker_that_names_what_is_not_there_is_refused(tmp_path: Path) -> None:
    (tmp_path / "latest_checkpointed_iteration.txt").write_text("19")
    with pytest.raises(PreflightError, match="names iteration 19, but iter_0000019 is not there"):
        starting_point(str(tmp_path), "/ref")


def test_a_tracker_with_rubbish_is_refused_with_the_folder(tmp_path: Path) -> None:
    (tmp_path / "latest_checkpointed_iteration.txt").write_text("soon")
    with pytest.raises(PreflightError, match="names 'soon', which is no iteration"):
        starting_point(str(tmp_path), "/ref")


def test_a_folder_with_other_files_is_refused_with_both_ways_out(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("")
    with pytest.raises(PreflightError) as error:
        starting_point(str(tmp_path), "/ref")
    assert "is not empty, but has no latest_checkpointed_iteration.txt" in str(error.value)
    assert "For a first run name an empty or absent folder; to resume, name" in str(error.value)


def test_a_converted_release_and_hugging_face_weights_are_starts_too(tmp_path: Path) -> None:
    (tmp_path / "latest_checkpointed_iteration.txt").write_text("release")
    assert "iteration release" in starting_point(str(tmp_path), None)
    weights = tmp_path / "hf"
    weights.mkdir()
    (weights / "config.json").write_text('{"model_type": "qwen3"}')
    assert "Hugging Face weights" in starting_point(str(weights), "/ref")
    # slime would take the reference instead, and write its checkpoints among these files.
    (weights / "config.json").write_text('{"model_type": "gpt2"}')
    with pytest.raises(PreflightError, match="is not empty"):
        starting_point(str(weights), "/ref")


def test_a_file_in_the_folders_place_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(PreflightError, match="is a file"):
        starting_point(str(tmp_path / "file"), None)

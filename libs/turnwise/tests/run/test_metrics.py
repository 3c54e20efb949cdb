"""The names in metrics.jsonl are an interface: this test is where they change."""

import json
import math

import msgspec
import pytest
from turnwise.episode import Boundary, BoundaryError, Ending
from turnwise.run.metrics import (
    EventRow,
    MetricMean,
    MetricsRow,
    SlimeRow,
    as_row,
    metric_means,
    parse_row,
    reward_fields,
)

from .episodes import episode
from .rows import eval_row, train_row

EVENT = EventRow(step=3, event="stall", at=1.5, seconds=90.0, text="no episode has ended")


def test_the_names_of_a_training_row_are_frozen() -> None:
    assert list(as_row(train_row())) == [
        "step",
        "kind",
        "reward_mean",
        "reward_stderr",
        "coverage",
        "ledger",
        "endings",
        "metrics",
        "services",
        "service_totals",
        "loss",
        "kl",
        "entropy",
        "clip_fraction",
        "grad_norm",
        "max_logprob_diff",
        "trained_tokens",
        "sampled_tokens",
        "tokens_per_s",
        "groups",
        "groups_kept",
        "groups_dropped",
        "rollout_s",
        "train_s",
        "loop_lag_p50_ms",
        "loop_lag_max_ms",
        "mean_logprob_diff",
        "tis_mean",
        "tis_clip_fraction",
        "peak_memory_bytes",
        "predicted_memory_bytes",
        "engine_busy_s",
        "waiting_s",
    ]


def test_the_names_of_an_evaluation_row_are_frozen() -> None:
    assert list(as_row(eval_row())) == [
        "step",
        "kind",
        "dataset",
        "reward_mean",
        "reward_stderr",
        "coverage",
        "ledger",
        "endings",
        "metrics",
        "baselines",
        "services",
        "service_totals",
        "eval_s",
        "scores",
        "compared",
        "pictures",
    ]


def test_a_mean_is_over_the_episodes_that_have_the_number() -> None:
    found = metric_means([{"turns": 2.0, "cost": None}, {"turns": 4.0, "cost": 0.5}, {}])
    assert found == {"turns": MetricMean(3.0, 2), "cost": MetricMean(0.5, 1)}
    assert metric_means([{"turns": math.nan}]) == {}


def test_the_names_of_an_event_row_are_frozen() -> None:
    assert list(as_row(EVENT)) == ["step", "kind", "event", "at", "seconds", "text"]


@pytest.mark.parametrize("made", [train_row(), eval_row(), EVENT])
def test_a_row_comes_back_from_the_file_as_it_was(made: MetricsRow) -> None:
    assert parse_row(json.loads(json.dumps(as_row(made)))) == made


def test_a_number_that_does_not_exist_is_null_in_the_file() -> None:
    row = as_row(train_row(reward_mean=math.nan, loss=None))
    assert row["reward_mean"] is None and row["loss"] is None
    assert parse_row(row).reward_mean is None


def test_rows_of_a_later_version_are_read_by_the_names_known_here() -> None:
    assert parse_row({**as_row(train_row()), "mfu": 0.4}) == train_row()


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"step": "3"}, r"`int`.*\$\.step"),
        ({"kind": "test"}, "kind: expected 'eval', 'train', 'slime' or 'event', found 'test'"),
        ({"kind": None}, "kind: expected"),
        ({"ledger": {"started": 3}}, "ledger"),
    ],
)
def test_a_row_that_is_none_says_what_is_wrong(changes: dict[str, object], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        parse_row({**as_row(train_row()), **changes})


def test_a_missing_field_is_named() -> None:
    row = as_row(train_row())
    del row["grad_norm"]
    with pytest.raises(ValueError, match="grad_norm"):
        parse_row(row)


def test_rows_do_not_change_once_made() -> None:
    with pytest.raises(AttributeError):
        train_row().step = 4  # type: ignore[misc]
    assert msgspec.structs.replace(train_row(), step=4).step == 4


def test_slimes_own_numbers_keep_their_names() -> None:
    row = SlimeRow(step=2, numbers={"train/pg_loss": 0.5, "perf/step_time": math.nan})
    assert as_row(row) == {
        "step": 2,
        "kind": "slime",
        "numbers": {"train/pg_loss": 0.5, "perf/step_time": None},
    }
    assert parse_row(as_row(row)) == SlimeRow(
        step=2, numbers={"train/pg_loss": 0.5, "perf/step_time": None}
    )


def test_a_reward_has_its_error_over_groups_and_counts_scored_rollouts_alone() -> None:
    lost = Ending.lost(BoundaryError(Boundary.USER, "gone"))
    found = reward_fields(
        [
            episode("1/0/0", score=1.0, group_id="a"),
            episode("1/0/1", score=0.0, group_id="a"),
            episode("1/1/0", score=1.0, group_id="b"),
            episode("1/1/1", score=None, ending=lost, group_id="b"),
            episode("1/2/0", score=None, ending=lost, group_id="c"),
        ]
    )
    assert found["reward_mean"] == pytest.approx(2 / 3)
    assert found["reward_stderr"] == pytest.approx(0.25)
    assert found["endings"] == {"finished": 3, "lost:user": 2}
    assert found["metrics"]["turns"] == MetricMean(2.0, 5)
    nothing = reward_fields([])
    assert math.isnan(nothing["reward_mean"]) and math.isnan(nothing["reward_stderr"])

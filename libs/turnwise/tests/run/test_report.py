"""The report is made from the run folder alone, whatever of it is there; no foreign text runs."""

from __future__ import annotations

import base64
import hashlib
import json
import re
from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from syrupy.assertion import SnapshotAssertion
from turnwise.config import ConfigError
from turnwise.report import load as load_module
from turnwise.report import sections, viewer, write_eval_report, write_report
from turnwise.report.load import halving
from turnwise.run.control import HISTORY, Outcome
from turnwise.run.folder import RunFolder
from turnwise.run.jsonl import append_rows
from turnwise.run.metrics import EventRow, MetricMean, Picture, SlimeRow, as_row
from turnwise.run.summary import SummaryTable, write_summary
from turnwise.trials import Estimate

from .episodes import episode, message, segment
from .pages import Page, add_trace, outline, run_folder, summary
from .rows import eval_row, train_row

EVIL = "</script><script>alert(1)</script><img src=x onerror=alert(2)>&amp;\u2028{{ 7*7 }}"


def test_a_report_has_all_of_its_parts(tmp_path: Path, snapshot: SnapshotAssertion) -> None:
    page = Page.read(write_report(run_folder(tmp_path).path))
    charts = [attrs.get("aria-label") for _, attrs in page.tags if "data-chart" in attrs]
    ids = [attrs["id"] for _, attrs in page.tags if "id" in attrs]
    assert {
        "headings": page.headings,
        "tables": page.heads,
        "charts": charts,
        "ids": ids,
        "episodes": [outline(shown) for shown in page.episodes],
    } == snapshot
    assert page.charts[0]["levels"] == {"doing nothing": 0.0}


def test_a_report_shows_how_long_rollouts_waited_and_what_was_played_at_the_end(
    tmp_path: Path,
) -> None:
    folder = run_folder(tmp_path)
    assert "until the longest" not in write_report(folder.path).read_text("utf-8")
    folder.append_metrics(as_row(train_row(step=4, rollout_s=40.0, waiting_s=10.0)))
    table = SummaryTable(title="By length", head=("length", "score"), rows=(("2x", "61.0 %"),))
    write_summary(folder, summary(tables=(table,)))
    text = write_report(folder.path).read_text("utf-8")
    assert "time 10.0 s (25%) went by" in text
    assert "<h2>By length</h2>" in text and "<td>61.0 %</td>" in text


def test_a_method_has_two_numbers_set_against_each_other(tmp_path: Path) -> None:
    picture = Picture(title="Pareto", x="usd", y="correct", points={"always the best": (4.0, 0.9)})
    folder = run_folder(tmp_path)
    folder.metrics.unlink()
    for step, usd, correct in ((0, 3.0, 0.4), (8, 2.0, 0.6), (16, 1.0, 0.8)):
        found = {"usd": MetricMean(usd, 4), "correct": MetricMean(correct, 4)}
        row = eval_row(step=step, metrics=found, pictures=[picture])
        folder.append_metrics(as_row(row))
    page = Page.read(write_report(folder.path))
    [chart] = [chart for chart in page.charts if chart["kind"] == "lines"]
    assert {one["name"]: (one["x"], one["y"]) for one in chart["series"]} == {
        "after step 0": ([3.0], [0.4]),
        "after step 8": ([2.0], [0.6]),
        "after step 16": ([1.0], [0.8]),
        "always the best": ([4.0], [0.9]),
    }
    assert chart["axis"] == "usd of an episode"


def test_the_verdict_stands_on_top_with_what_it_means(tmp_path: Path) -> None:
    page = Page.read(write_report(run_folder(tmp_path).path))
    verdict = page.text.index("It learned: held-out score 46.0 ± 4.0 % → 66.0 ± 4.0 %")
    claim = page.text.index("Held-out tasks share no order")
    assert verdict < claim < page.text.index("Curves")


def test_stalls_and_requests_stand_in_the_report_in_order_of_time(tmp_path: Path) -> None:
    folder = run_folder(tmp_path)
    late = Outcome(
        request="a",
        at=2e9,
        step=2,
        command="set",
        arguments={"lr": "1e-5"},
        by=f"ann {EVIL}",
        answer="done",
    )
    noted = msgspec.structs.replace(late, answer="noted")
    append_rows(folder.path / HISTORY, [msgspec.to_builtins(one) for one in (noted, late)])
    event = EventRow(step=1, event="stall", at=1e9, seconds=90.0, text=f"nothing ends {EVIL}")
    folder.append_metrics(as_row(event))
    page = Page.read(write_report(folder.path))
    assert "What happened" in page.headings
    text = page.text[page.text.index("What happened") :]
    assert text.index("nothing ends") < text.index("set lr 1e-5")
    assert text.count("set lr 1e-5") == 1 and "ann" in text
    assert not any(tag == "img" for tag, _ in page.tags)


def test_the_same_folder_gives_the_same_bytes(tmp_path: Path) -> None:
    folder = run_folder(tmp_path)
    first = write_report(folder.path).read_bytes()
    assert write_report(folder.path).read_bytes() == first
    assert not list(folder.path.glob(".*"))


def test_nothing_is_fetched(tmp_path: Path) -> None:
    path = write_report(run_folder(tmp_path).path)
    page = Page.read(path)
    for _, attrs in page.tags:
        for name in ("src", "href", "action", "srcset", "poster"):
            assert (attrs.get(name) or "data:").startswith("data:")
    style = re.search(r"<style>(.*?)</style>", path.read_text(), re.DOTALL)
    assert style is not None and not re.search(r"url\(|@import|https?:", style[1])
    policy = next(a["content"] for t, a in page.tags if t == "meta" and "http-equiv" in a)
    assert policy is not None and policy.startswith("default-src 'none'")


def test_only_the_pages_own_scripts_may_run(tmp_path: Path) -> None:
    path = write_report(run_folder(tmp_path).path)
    (data, _), (charts, _), *own = Page.read(path).scripts
    assert data["type"] == charts["type"] == "application/json"
    assert [attrs for attrs, _ in own] == [{}, {}, {}, {}]
    digests = [
        base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for _, script in own
    ]
    allowed = " ".join(f"'sha256-{digest}'" for digest in digests)
    assert f"script-src {allowed}; img-src" in path.read_text()


def test_no_text_of_a_model_becomes_markup(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path / "run", EVIL, {EVIL: EVIL, "seed": EVIL})
    row = eval_row(
        services={EVIL: EVIL}, baselines={EVIL: 0.5}, scores={EVIL: [1.0]}, endings={EVIL: 1}
    )
    folder.append_metrics(as_row(row))
    folder.append_metrics(as_row(train_row(metrics={EVIL: MetricMean(2.0, 4)}, endings={EVIL: 3})))
    add_trace(
        folder,
        step=1,
        kind="train",
        why=EVIL,
        answer=EVIL,
        user=EVIL,
        tool=EVIL,
        task_id=EVIL,
        rollout_id=EVIL,
        metrics={EVIL: 1.0},
        info={EVIL: EVIL},
    )
    write_summary(folder, summary(services={EVIL: EVIL}, claim=(EVIL,), method=EVIL))
    clean = Page.read(write_report(run_folder(tmp_path).path))
    page = Page.read(write_report(folder.path))
    assert len(page.scripts) == 6
    assert {tag for tag, _ in page.tags} <= {tag for tag, _ in clean.tags}
    assert not any(name.startswith("on") for _, attrs in page.tags for name in attrs)
    assert "49" not in page.text.split("Configuration")[1]
    shown = page.episodes[0]
    assert EVIL in shown["title"]
    texts = ["".join(c["texts"]) for block in shown["segments"][0] for c in block["chunks"]]
    assert EVIL in texts
    write_eval_report(folder.path)
    assert len(Page.read(folder.report).scripts) == 6


def chunks(page: Page, number: int = 0) -> list[tuple[str, bool, str]]:
    return [
        (chunk["author"], chunk["trained"], "".join(chunk["texts"]))
        for block in page.episodes[number]["segments"][0]
        for chunk in block["chunks"]
    ]


def test_every_token_is_shown_with_author_mask_and_logprob(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path / "run", "tau", {})
    add_trace(folder, step=1, kind="train")
    page = Page.read(write_report(folder.path))
    made = episode().segments[0]
    shown = [c for block in page.episodes[0]["segments"][0] for c in block["chunks"]]
    assert [token for chunk in shown for token in chunk["ids"]] == made.ids.tolist()
    trained = [chunk["trained"] for chunk in shown for _ in chunk["ids"]]
    assert trained[made.prompt_length :] == made.loss_mask.astype(bool).tolist()
    assert not any(trained[: made.prompt_length])
    for chunk in shown:
        assert chunk.get("logprobs") == ([-0.25] * len(chunk["ids"]) if chunk["trained"] else None)
    assert ("policy", True, "Let me look.<|im_end|>") in chunks(page)
    assert ("tool", False, "It was sent.") in chunks(page)


def test_sampled_tokens_that_are_not_trained_are_shown_as_that(tmp_path: Path) -> None:
    sample = segment(["Let me look."], prompt=message("user", "Hello."))
    mask = sample.loss_mask.copy()
    mask[:4] = 0
    folder = RunFolder.create(tmp_path / "run", "tau", {})
    add_trace(folder, step=1, kind="train", segments=(replace(sample, loss_mask=mask),))
    shown = chunks(Page.read(write_report(folder.path)))
    assert ("policy", False, "Let ") in shown
    assert ("policy", True, "me look.<|im_end|>") in shown


def test_a_conversation_is_split_where_messages_begin(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path / "run", "tau", {})
    add_trace(folder, step=1, kind="train")
    blocks = Page.read(write_report(folder.path)).episodes[0]["segments"][0]
    assert [block["name"] for block in blocks] == [
        "System",
        "User",
        "Policy, turn 1",
        "Tool",
        "Policy, turn 2",
    ]
    starts = [block["chunks"][0]["texts"][0] for block in blocks]
    assert starts == ["<|im_start|>"] * 5


def test_the_policys_words_in_a_later_prompt_are_not_shown_as_trained(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path / "run", "tau", {})
    later = segment(["Sent."], prompt=message("assistant", "Let me look."))
    add_trace(folder, step=1, kind="train", segments=(later,))
    blocks = Page.read(write_report(folder.path)).episodes[0]["segments"][0]
    assert [(block["name"], block["trained"]) for block in blocks] == [
        ("Policy", False),
        ("Policy, turn 1", True),
    ]


def test_an_episode_without_tokens_shows_its_messages(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path / "run", "tau", {})
    call = {"function": {"name": "find", "arguments": {"key": 7}}}
    transcript = [
        {"role": "user", "content": "Hello."},
        {"role": "assistant", "content": None, "tool_calls": [call]},
    ]
    add_trace(folder, step=1, kind="train", score=None, segments=(), transcript=transcript)
    page = Page.read(write_report(folder.path))
    assert chunks(page)[0] == ("user", False, "Hello.")
    assert '"find"' in chunks(page)[1][2]
    assert "lost:user" in page.episodes[0]["title"]
    assert ["error", "no answer"] in page.episodes[0]["facts"]


@pytest.mark.parametrize("gone", ["config.json", "metrics.jsonl", "episodes.jsonl", "summary.json"])
def test_a_missing_file_is_said_and_the_rest_shown(tmp_path: Path, gone: str) -> None:
    folder = run_folder(tmp_path)
    (folder.path / gone).unlink()
    text = Page.read(write_report(folder.path)).text
    said = "No verdict" if gone == "summary.json" else f"{gone} is missing"
    assert said in text


def test_an_interrupted_run_has_a_report_without_a_verdict(tmp_path: Path) -> None:
    folder = run_folder(tmp_path, ended=False)
    with folder.metrics.open("a") as stream:
        stream.write('{"step":4,"ki')
    folder.config.write_text('{"num_rollout": 20}')
    text = Page.read(write_report(folder.path)).text
    assert "No verdict: this run has not ended, or was interrupted." in text
    assert "3 of 20 training steps and 1 evaluation" in text
    assert "the last line of metrics.jsonl is torn (13 bytes) and left out" in text


def test_a_run_that_has_just_begun_has_a_report(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path / "run", "tau", {})
    text = Page.read(write_report(folder.path)).text
    assert "Nothing to draw yet" in text and "No episode was kept." in text


@pytest.mark.parametrize(
    ("name", "line", "said"),
    [
        ("metrics.jsonl", "{", r"metrics\.jsonl:2: not valid JSON"),
        ("metrics.jsonl", '{"kind":"train","step":1}', r"metrics\.jsonl:2: .*reward_mean"),
        ("episodes.jsonl", "{", r"episodes\.jsonl:2: not a trace"),
        ("episodes.jsonl", '{"step":1}', r"episodes\.jsonl:2: not a trace .*kind"),
        (
            "episodes.jsonl",
            '{"schema":9,"step":1,"kind":"eval"}',
            r"episodes\.jsonl:2: schema: this version reads 1, found 9",
        ),
    ],
)
def test_a_broken_row_is_an_error_that_names_file_and_line(
    tmp_path: Path, name: str, line: str, said: str
) -> None:
    folder = run_folder(tmp_path, steps=1)
    path = folder.path / name
    rows = path.read_text().splitlines()
    path.write_text("\n".join([rows[0], line, *rows[1:]]) + "\n")
    with pytest.raises(ConfigError, match=said):
        write_report(folder.path)


def test_the_equation_is_summed_over_the_training_steps(tmp_path: Path) -> None:
    text = Page.read(write_report(run_folder(tmp_path).path)).text
    assert (
        "All training steps: 12 started = 9 finished + 0 stopped + 3 lost (user 3) + 0 cancelled"
    ) in text


def test_a_ledger_that_does_not_balance_is_shown_as_that(tmp_path: Path) -> None:
    folder = run_folder(tmp_path)
    bad = {"started": 5, "finished": 3, "stopped": {}, "lost": {"user": 1}, "cancelled": 0}
    assert "does not balance" not in Page.read(write_report(folder.path)).text
    folder.append_metrics(as_row(train_row(step=4, ledger=bad)))
    text = Page.read(write_report(folder.path)).text
    assert "It does not hold in every row" in text
    assert text.count("does not balance") == 2


def test_a_huge_run_is_capped_and_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(load_module, "MAX_EPISODES", 20)
    monkeypatch.setattr(viewer, "MAX_TOKENS", 2000)
    folder = run_folder(tmp_path, steps=2)
    metrics = [json.dumps(as_row(train_row(step=step))) for step in range(3, 3000)]
    with folder.metrics.open("a") as stream:
        stream.writelines(f"{row}\n" for row in metrics)
    trace = json.loads(folder.episodes.read_text().splitlines()[1])
    with folder.episodes.open("a") as stream:
        stream.writelines(
            json.dumps({**trace, "step": step}) + "\n" for step in range(3, 3000) for _ in "ab"
        )
    path = write_report(folder.path)
    page = Page.read(path)
    assert "20 of the 5,998 episodes that the run kept whole" in page.text
    assert "Each point is the mean of 3 steps." in page.text
    assert "200 of 2999 rows, evenly chosen" in page.text
    assert "2799 rows between these are left out" in page.text
    assert path.stat().st_size < 600_000
    steps = [int(re.sub(r"\D", "", shown["when"])) for shown in page.episodes]
    assert len(steps) == 20 and steps[-1] == 2999 and 1000 < steps[10] < 2000
    # The ends of the run come first where there is no room for all.
    whole = [not shown["note"] for shown in page.episodes]
    assert whole[0] and whole[-1] and not all(whole)
    assert all("are left out of this page" in s["note"] for s in page.episodes if s["note"])


def test_an_evaluation_that_kept_too_many_episodes_shows_the_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(load_module, "MAX_EPISODES", 2)
    folder = RunFolder.create(tmp_path / "run", "tau", {})
    for number in range(5):
        add_trace(folder, step=0, kind="eval", task_id=f"task{number}")
    page = Page.read(write_report(folder.path))
    assert ["task0" in s["title"] or "task1" in s["title"] for s in page.episodes] == [True, True]
    assert "2 of the 5 episodes" in page.text


def test_a_long_message_loses_its_middle_and_says_how_much(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(viewer, "HEAD", 10)
    monkeypatch.setattr(viewer, "TAIL", 5)
    folder = RunFolder.create(tmp_path / "run", "tau", {})
    add_trace(folder, step=1, kind="train", tool="0123456789" * 10)
    tool = next(
        chunk
        for block in Page.read(write_report(folder.path)).episodes[0]["segments"][0]
        for chunk in block["chunks"]
        if chunk["author"] == "tool"
    )
    assert "".join(tool["texts"]) == "0123456789" + "56789"
    assert tool["gap"] == [10, 85] and tool["count"] == 100


@pytest.mark.parametrize("count", [0, 1, 2, 3, 10, 1000])
def test_halving_keeps_all_and_begins_evenly(count: int) -> None:
    order = halving(range(count))
    assert sorted(order) == list(range(count))
    if count >= 10:
        five = sorted(order[:5])
        gaps = [b - a for a, b in zip(five, five[1:], strict=False)]
        assert five[0] == 0 and five[-1] == count - 1 and max(gaps) <= count / 4 + 1


def test_a_thinned_table_keeps_order_and_ends() -> None:
    kept = sections.thinned(range(1000))
    assert len(kept) == sections.MAX_ROWS
    assert kept == sorted(kept) and (kept[0], kept[-1]) == (0, 999)


def test_values_that_do_not_exist_leave_no_trace_of_nan(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path / "run", "tau", {})
    nothing = dict.fromkeys(
        ("reward_mean", "reward_stderr", "coverage", "loss", "kl", "entropy", "tokens_per_s")
    )
    folder.append_metrics(as_row(msgspec.structs.replace(train_row(), **nothing)))
    folder.append_metrics(as_row(eval_row(reward_mean=None, reward_stderr=None, scores={})))
    write_summary(folder, summary(difference=Estimate(float("nan"), float("nan"), 0, 0)))
    text = Page.read(write_report(folder.path)).text
    assert "Nothing can be said" in text
    assert not re.search(r"\bnan\b|\bNone\b", text, re.IGNORECASE)


def test_slimes_own_numbers_are_shown_under_their_names(tmp_path: Path) -> None:
    folder = run_folder(tmp_path)
    for step in (1, 2):
        for half in (0, 1):
            numbers = {"train/pg_loss": step + 0.1 * half, "train/step": 2.0 * step + half}
            folder.append_metrics(as_row(SlimeRow(step=step, numbers=numbers)))
        folder.append_metrics(as_row(SlimeRow(step=step, numbers={"perf/flat": 3.0})))
    page = Page.read(write_report(folder.path))
    assert "slime's own numbers" in page.headings
    labels = [attrs.get("aria-label") for _, attrs in page.tags if "data-chart" in attrs]
    (place,) = [n for n, label in enumerate(labels) if str(label).startswith("train/pg_loss")]
    number = [attrs["data-chart"] for _, attrs in page.tags if "data-chart" in attrs][place]
    drawn = page.charts[int(str(number))]
    assert (drawn["x"], drawn["y"]) == ([1, 1.5, 2, 2.5], [1, 1.1, 2, 2.1])
    assert not any(str(label).startswith("perf/flat") for label in labels)
    assert "perf/flat" in page.text


def test_a_run_on_the_cluster_may_lack_what_only_a_local_trainer_knows(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path / "run", "tau", {})
    folder.append_metrics(as_row(eval_row(dataset="retail")))
    folder.append_metrics(as_row(eval_row(dataset="airline", scores={"a/1": [1.0]})))
    folder.append_metrics(as_row(train_row(step=1, train_s=None, trained_tokens=None, loss=None)))
    folder.append_metrics(as_row(eval_row(step=1, dataset="retail")))
    folder.append_metrics(as_row(eval_row(step=1, dataset="airline", scores={"a/1": [0.0]})))
    page = Page.read(write_report(folder.path))
    labels = [str(attrs.get("aria-label")) for _, attrs in page.tags if "data-chart" in attrs]
    assert labels[0].startswith("Score of the evaluations: retail")
    assert labels[1].startswith("Score of the evaluations: airline")
    assert "evaluation after step 1 on airline" in page.text

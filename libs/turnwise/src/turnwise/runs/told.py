"""A status in words, for a terminal and for the page."""

from __future__ import annotations

import time
from collections.abc import Sequence

from turnwise.run.control import Outcome, in_words
from turnwise.run.status import EpisodeStatus, Status, is_alive

SAMPLING_S = 5.0
"""An engine that sampled a token so lately is at work: who waits for it has a long turn."""
MAX_HISTORY = 10
Table = tuple[str, Sequence[str], Sequence[Sequence[str]]]
"""Title, head and rows."""


def seconds(value: float) -> str:
    """`0.4 s`, `12 s`, `5 min`, `3.2 h`."""
    if value < 120:
        return f"{value:.1f} s" if value < 10 else f"{value:.0f} s"
    return f"{value / 60:.0f} min" if value < 7200 else f"{value / 3600:.1f} h"


def headline(status: Status, now: float | None = None) -> str:
    """What the run does, in one sentence."""
    now = time.time() if now is None else now
    ago = now - status.at
    median = "" if status.median_s is None else f", {seconds(status.median_s)} each"
    if status.state == "ended":
        at = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(status.at))
        return (
            f"ended at {at} UTC, {seconds(max(0.0, ago))} ago, on {status.backend},"
            f" {status.process}: after step {status.step}; {status.settled} episodes ended{median}"
        )
    return (
        f"{status.state} on {status.backend}, {status.process}: after step {status.step},"
        f" {status.stage} for {seconds(status.stage_s)}; {status.in_flight} episodes under way,"
        f" {status.settled} ended{median}; as of {seconds(max(0.0, ago))} ago"
        + ("" if is_alive(status, now) else ", and nothing since: it has ended or can't write")
    )


def warnings(status: Status) -> list[str]:
    """What is wrong, if anything."""
    found = [f"STALL: {status.stalled}"] if status.stalled else []
    if status.loop_s > 5.0:
        found.append(
            f"the event loop has not taken its turn for {seconds(status.loop_s)}: --stacks shows"
            " what holds it up"
        )
    return found


def tables(status: Status) -> list[Table]:
    """Everything else; tables without rows are left out."""
    found: list[Table] = [
        (
            "waits",
            ("for", "episodes", "longest"),
            [
                (waited(one.what, status), str(one.episodes), seconds(one.longest_s))
                for one in status.waits
            ],
        ),
        (
            "slowest groups",
            ("group", "task", "under way", "for"),
            [(g.group, g.task, str(g.episodes), seconds(g.seconds)) for g in status.groups],
        ),
        (
            "last errors",
            ("at", "error", "so far", "ago"),
            [(e.boundary, e.error, str(e.count), seconds(e.ago_s)) for e in status.errors],
        ),
        (
            "endpoints",
            ("endpoint", "under way", "waiting", "at most", "429s", "spent"),
            [
                (
                    one.name,
                    str(one.running),
                    str(one.waiting),
                    str(one.concurrency),
                    str(one.rejections),
                    "" if one.usd is None else _money(one.usd, one.cap_usd),
                )
                for one in status.services
            ],
        ),
        (
            "last signs of life",
            ("of", "ago", ""),
            [(one.name, seconds(one.ago_s), one.said) for one in status.signs],
        ),
        ("episodes, the oldest first", EPISODE_HEAD, [_row(e, status) for e in status.episodes]),
    ]
    return [table for table in found if table[2]]


EPISODE_HEAD = ("episode", "task", "for", "waits for")


def history(outcomes: Sequence[Outcome]) -> Table:
    """The last requests with what became of them."""
    rows = [
        (
            time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(one.at)),
            str(one.step),
            in_words(one),
            one.answer,
            one.said,
            one.by,
        )
        for one in outcomes
    ]
    return ("requests", ("at (UTC)", "after step", "asked", "answer", "", "by"), rows)


def waited(what: str, status: Status) -> str:
    """What is waited for; an engine that samples is the policy's own turn."""
    last = next((one.ago_s for one in status.signs if one.name == "engine's last token"), None)
    if what != "engine" or last is None:
        return what
    return "policy's turn" if last < SAMPLING_S else f"engine, no token for {seconds(last)}"


def _row(episode: EpisodeStatus, status: Status) -> tuple[str, str, str, str]:
    waits = [f"{waited(one.what, status)} {seconds(one.seconds)}" for one in episode.waits]
    said = " > ".join(waits) or "nothing: its own code"
    return (episode.rollout, episode.task, seconds(episode.seconds), said)


def _money(usd: float, cap: float | None) -> str:
    return f"${usd:.4f}" if cap is None else f"${usd:.4f} of ${cap:.2f}"

"""The page in a headless Chromium; without one these tests are skipped."""

import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from run.episodes import message, segment
from run.pages import add_trace, run_folder, summary
from run.rows import eval_row, train_row
from runs.answering import answering
from turnwise.inflight import playing, waiting
from turnwise.report import write_report
from turnwise.run.control import make_request, record_outcome
from turnwise.run.folder import RunFolder
from turnwise.run.metrics import EventRow, SlimeRow, as_row
from turnwise.run.start import Start, write_start
from turnwise.run.summary import write_summary
from turnwise.run.watching import StatusWriter

from view.browser import CHROMIUM, Page, launched, opened
from view.serving import serving

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="needs chromium")

ROWS = "document.querySelectorAll('#runs tbody tr').length"
EPISODES = "document.querySelectorAll('#episodes tbody tr').length"
TOKENS = "document.querySelectorAll('#conversation .token').length"
HOSTILE = (
    "</script><script>window.hit=1</script><img src=http://203.0.113.1/x onerror='window.hit=1'>"
)
SHOWN = "document.querySelector('#conversation').innerText"


@pytest.fixture(scope="module", autouse=True)
def chromium(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """One browser for all tests of this file, each of which has a page of its own."""
    with launched(tmp_path_factory.mktemp("chromium")) as address:
        ADDRESS.append(address)
        yield
        ADDRESS.clear()


ADDRESS: list[str] = []


@asynccontextmanager
async def looking(tmp_path: Path, token: str | None = None) -> AsyncIterator[tuple[Page, str]]:
    """A page, and the address of the runs in `tmp_path / "runs"`."""
    served = serving(tmp_path / "runs", token)
    async with served as url, opened(ADDRESS[0]) as page:
        await page.resize(1280, 900)
        yield page, url
        assert not page.faults
        assert all(one.startswith((url, "data:", "about:")) for one in page.requests)


async def test_from_the_list_to_a_run_to_an_episode(tmp_path: Path) -> None:
    run_folder(tmp_path / "runs")
    async with looking(tmp_path) as (page, url):
        await page.open(url)
        await page.until(f"{ROWS} == 1")
        assert "It learned: held-out score 46.0" in await page.text("#runs")
        await page.click("#runs tbody a")
        await page.until("document.querySelectorAll('.uplot').length > 5")
        text = await page.text()
        assert "finished" in text and "all training steps" in text and "It holds" in text
        await page.click("header a")
        await page.until(f"{EPISODES} == 5")
        await page.click("#episodes tbody a")
        await page.until(f"{TOKENS} > 50")
        assert "Policy, turn 1" in await page.text("#conversation")
        await page.value("document.querySelector('#conversation .trained').click()")
        assert "by the policy, trained\nlog-prob -0.250" in await page.text("#info")


async def test_runs_are_filtered_and_two_are_compared(tmp_path: Path) -> None:
    for name in ("one", "two", "other"):
        run_folder(tmp_path / "runs" / name)
    async with looking(tmp_path) as (page, url):
        await page.open(url)
        await page.until(f"{ROWS} == 3")
        await page.fill("input[type=search]", "o/tau")
        await page.until(f"{ROWS} == 1")
        await page.fill("input[type=search]", "tau-run")
        await page.until(f"{ROWS} == 3")
        assert await page.value("document.querySelector('.bar button').disabled")
        await page.value("document.querySelectorAll('#runs input')[0].click()")
        await page.value("document.querySelectorAll('#runs input')[1].click()")
        await page.click(".bar button")
        await page.until("document.querySelectorAll('.uplot').length > 3")
        await page.until("document.querySelector('#paired').innerText.includes('paired over')")


async def test_episodes_are_searched_and_the_search_is_in_the_address(tmp_path: Path) -> None:
    folder = run_folder(tmp_path / "runs", ended=False)
    add_trace(folder, step=9, kind="train", tool="A needle in here.", score=0.0)
    async with looking(tmp_path) as (page, url):
        await page.open(f"{url}/#episodes?run=tau-run")
        await page.until(f"{EPISODES} == 5")
        await page.fill("[name=text]", "NEEDLE")
        await page.until(f"{EPISODES} == 1")
        assert "text=NEEDLE" in await page.value("location.href")
        await page.open("about:blank")
        await page.open(f"{url}/#episodes?run=tau-run&most_score=0.5&order=best")
        await page.until(f"{EPISODES} == 1")


async def test_a_run_under_way_is_followed(tmp_path: Path) -> None:
    folder = run_folder(tmp_path / "runs", ended=False)
    async with looking(tmp_path) as (page, url):
        await page.open(f"{url}/#run?run=tau-run")
        await page.until("document.querySelector('header').innerText.includes('3 training steps')")
        with folder.metrics.open("ab") as stream:
            line = json.dumps(as_row(train_row(step=4))).encode() + b"\n"
            stream.write(line[:100])
            stream.flush()
            await page.until("document.querySelector('header').innerText.includes('3 training')")
            stream.write(line[100:])
        await page.until("document.querySelector('header').innerText.includes('4 training steps')")
        write_summary(folder, summary(steps=4))
        await page.until("document.querySelector('header').innerText.includes('It learned')")


async def tab_to(page: Page, selector: str) -> None:
    for _ in range(60):
        await page.press("Tab")
        if await page.value(f"document.activeElement.matches({json.dumps(selector)})"):
            return
    raise AssertionError(f"no Tab reaches {selector}")


async def test_a_run_is_paused_changed_and_resumed_by_keyboard_alone_on_a_phone(
    tmp_path: Path,
) -> None:
    folder = run_folder(tmp_path / "runs", ended=False)
    state = "document.querySelector('#status .note').innerText"
    status = "document.querySelector('#status').innerText"
    with answering(folder.path) as run:
        async with looking(tmp_path, token="secret") as (page, url):
            await page.resize(390, 844)
            await page.open(f"{url}/?token=secret#run?run=tau-run")
            await page.until(f"{state}.startsWith('running on local')")
            await tab_to(page, "[data-command=pause]")
            await page.press("Enter")
            await page.until(f"{state}.startsWith('paused')")
            await tab_to(page, "[data-command=save]")
            await page.press(" ")
            await tab_to(page, "[aria-label=option]")
            await page.send("Input.insertText", text="lr")
            await tab_to(page, "[aria-label=value]")
            await page.send("Input.insertText", text="1e-5")
            await page.press("Enter")
            await page.until(f"{status}.includes('set lr 1e-5')")
            await tab_to(page, "[aria-label=task]")
            await page.send("Input.insertText", text="retail/1")
            await page.press("Enter")
            await page.until(f"{status}.includes('drop retail/1')")
            await page.value("document.querySelector('[data-command=resume]').focus()")
            await page.press("Enter")
            await page.until(f"{state}.startsWith('running')")
            await tab_to(page, "[data-command=stop]")
            await page.press("Enter")
            assert "Stop for good?" in await page.text("#status")
            await page.press("Tab")
            assert "Stop for good?" not in await page.text("#status")
            assert await page.value("document.documentElement.scrollWidth") <= 390
            papers = set()
            for dark in (False, True):
                await page.resize(390, 844, dark=dark)
                papers.add(await page.value("getComputedStyle(document.body).backgroundColor"))
                controls = await page.value(SEEN)
                assert controls
                for width, height, contrast in controls:
                    assert 0 < width <= 390 and height >= 36 and contrast >= 4.5
            assert len(papers) == 2
        asked = [(one.command, *one.arguments.items()) for one in run.taken]
        assert asked == [
            ("pause",),
            ("save",),
            ("set", ("lr", "1e-5")),
            ("drop", ("retail/1", "")),
            ("resume",),
        ]


SEEN = """
(() => {
  const light = (colour) => {
    const [r, g, b] = colour.match(/[0-9.]+/g).map(Number).map((one) => one / 255)
      .map((one) => (one <= 0.04045 ? one / 12.92 : ((one + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  return [...document.querySelectorAll("#status button, #status input")].map((one) => {
    const box = one.getBoundingClientRect();
    const style = getComputedStyle(one);
    const [ink, paper] = [light(style.color), light(style.backgroundColor)];
    const contrast = (Math.max(ink, paper) + 0.05) / (Math.min(ink, paper) + 0.05);
    return [box.right, box.height, contrast];
  });
})()
"""
"""Of each control its right edge and height in pixels, and how its text stands out."""


async def test_without_the_token_a_run_is_seen_and_not_changed(tmp_path: Path) -> None:
    folder = run_folder(tmp_path / "runs", ended=False)
    with answering(folder.path):
        async with looking(tmp_path, token="secret") as (page, url):
            await page.open(f"{url}/#run?run=tau-run")
            await page.until("document.querySelector('#status .note').innerText")
            assert await page.value("document.querySelectorAll('#status button').length") == 0


async def test_a_server_that_is_gone_is_told_and_the_page_stays(tmp_path: Path) -> None:
    run_folder(tmp_path / "runs")
    async with opened(ADDRESS[0]) as page:
        async with serving(tmp_path / "runs") as url:
            await page.open(url)
            await page.until(f"{ROWS} == 1")
        await page.until("document.querySelector('#trouble').innerText.includes('does not answer')")
        assert await page.value(ROWS) == 1


async def test_text_of_a_model_is_never_markup(tmp_path: Path) -> None:
    root = tmp_path / "runs"
    folder = RunFolder.create(root / "<img src=x onerror=hit=1>", HOSTILE, {HOSTILE: HOSTILE})
    bad = {"endings": {HOSTILE: 1}, "services": {HOSTILE: HOSTILE}}
    folder.append_metrics(as_row(eval_row(scores={HOSTILE: [1.0]}, **bad)))
    for step in (1, 2):
        folder.append_metrics(as_row(train_row(step=step, **bad)))
    event = EventRow(step=1, event=HOSTILE, at=0.0, seconds=1.0, text=HOSTILE)
    folder.append_metrics(as_row(event))
    record_outcome(folder.path, make_request("pause", by=HOSTILE), "refused", HOSTILE)
    with playing(HOSTILE, HOSTILE, HOSTILE), waiting(HOSTILE):
        StatusWriter(folder.path, backend="local").tick()
    write_start(folder.path, Start(method=HOSTILE, file=HOSTILE, preset=True, changed={HOSTILE: 1}))
    folder.append_metrics(
        as_row(SlimeRow(step=1, numbers={HOSTILE: 1.0, f"perf/gpu{HOSTILE}": 1.0}))
    )
    memory = repr({"gpu": HOSTILE, "used_GB": 1.0})
    (folder.logs / "job.log").write_text(f"[Rank 0] Memory-Usage {HOSTILE}: {memory}\n")
    broken = {"kind": HOSTILE, "message": HOSTILE, "span": [0, 9], "offset": 3}
    reads = [{"name": HOSTILE, "span": [0, 99], "error": broken}]
    words = {"role": "assistant", "content": HOSTILE, "text": HOSTILE, "turn": 0, "read": reads}
    info = {HOSTILE: HOSTILE, "seed": 1, "rewrites": [{"turn": 0, "where": HOSTILE}]}
    said = {
        "segments": tuple(segment([HOSTILE], prompt=message("user", HOSTILE)) for _ in range(2)),
        "transcript": [{"role": "user", "content": HOSTILE}, words],
        "info": info,
    }
    for number in range(2):
        ids = {"rollout_id": f"{HOSTILE}/{number}", "task_id": HOSTILE}
        add_trace(folder, step=1, kind="train", why=HOSTILE, **ids, **said)
    with folder.episodes.open("ab") as stream:
        stream.write(json.dumps({"step": HOSTILE}).encode() + b"\n")
    write_summary(folder, summary(method=HOSTILE, claim=(HOSTILE,), services={HOSTILE: HOSTILE}))
    async with looking(tmp_path) as (page, url):
        await page.open(url)
        await page.until(f"{ROWS} == 1")
        await page.click("#runs tbody a")
        await page.until("!!document.querySelector('#config')")
        assert HOSTILE in await page.value("document.querySelector('#config').textContent")
        assert HOSTILE in await page.value("document.querySelector('#status').textContent")
        assert HOSTILE in await page.value("document.querySelector('#gpus').textContent")
        await page.click("header a")
        await page.until(f"{EPISODES} == 2")
        await page.click("#episodes tbody td a")
        await page.until("document.querySelectorAll('.columns > div').length == 2")
        await page.click(".columns a")
        await page.until(f"{TOKENS} > 100")
        shown = await page.value("document.querySelector('#conversation').textContent")
        assert HOSTILE in shown
        assert f"{HOSTILE} at byte 3: {HOSTILE}" in shown
        assert "<script>" in await page.value("document.querySelector('#again').textContent")
        await page.until("document.querySelectorAll('.lane').length == 2")
        assert await page.value("window.hit === undefined")
        assert await page.value("document.querySelectorAll('main img, main script').length") == 0


async def test_the_page_is_used_by_keyboard_alone(tmp_path: Path) -> None:
    run_folder(tmp_path / "runs")
    async with looking(tmp_path) as (page, url):
        await page.open(url)
        await page.until(f"{ROWS} == 1")

        await tab_to(page, "#runs tbody a")
        await page.press("Enter")
        await page.until("!!document.querySelector('header a')")
        await tab_to(page, "header a")
        await page.press("Enter")
        await page.until(f"{EPISODES} == 5")
        await tab_to(page, "#episodes tbody a")
        await page.press("Enter")
        await page.until(f"{TOKENS} > 50")
        await tab_to(page, "#conversation")
        await page.press("ArrowRight")
        await page.press("ArrowRight")
        assert "id 115" in await page.text("#info")
        await page.press("Escape")
        assert await page.value("document.querySelector('#info').hidden")


@pytest.mark.parametrize("dark", [False, True])
async def test_a_phone_shows_every_view_without_scrolling_sideways(
    tmp_path: Path, dark: bool
) -> None:
    run_folder(tmp_path / "runs")
    async with looking(tmp_path) as (page, url):
        await page.resize(390, 844, dark=dark)
        for place, shown in (
            ("", f"{ROWS} == 1"),
            ("#run?run=tau-run", "!!document.querySelector('#config')"),
            ("#episodes?run=tau-run", f"{EPISODES} == 5"),
            ("#episode?run=tau-run&line=0", f"{TOKENS} > 50"),
            ("#group?run=tau-run&line=0", "!!document.querySelector('.columns')"),
        ):
            await page.open("about:blank")
            await page.open(f"{url}/{place}")
            await page.until(shown)
            assert await page.value("document.documentElement.scrollWidth") <= 390, place
        paper = await page.value("getComputedStyle(document.body).backgroundColor")
        assert paper == ("rgb(20, 22, 25)" if dark else "rgb(247, 246, 243)")


async def test_a_long_episode_draws_what_is_seen(tmp_path: Path) -> None:
    folder = run_folder(tmp_path / "runs", ended=False)
    tool = "".join(f"line {number:06}\n" for number in range(20_000))
    long = segment(
        ["Let me look.", "The end."],
        prompt=message("user", "Read."),
        environment=[message("user", tool)],
    )
    add_trace(folder, step=4, kind="train", segments=(long,), tool=tool)
    async with looking(tmp_path) as (page, url):
        await page.open(f"{url}/#episode?run=tau-run&line=4")
        await page.until(f"{SHOWN}.includes('line 000007')")
        assert await page.value(TOKENS) < 20_000
        await page.value("document.querySelector('.block:last-child').scrollIntoView()")
        await page.until(f"{SHOWN}.includes('The end.')")
        await page.until(f"!{SHOWN}.includes('line 000007')")
        assert await page.value(TOKENS) < 20_000


async def test_the_report_in_one_file_draws_with_the_same_parts(tmp_path: Path) -> None:
    path = write_report(run_folder(tmp_path).path)
    async with opened(ADDRESS[0]) as page:
        await page.resize(1280, 900)
        await page.open(path.as_uri())
        await page.until(f"{TOKENS} > 50")
        await page.until("document.querySelectorAll('.uplot').length > 5")
        await page.click("#conversation .trained")
        assert "log-prob -0.250" in await page.text("#info")
        assert not page.faults and all(one.startswith(("file:", "data:")) for one in page.requests)

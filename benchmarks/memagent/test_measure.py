"""The measured pattern, small: every section is a turn, and the text is read to its end."""

from benchmarks.memagent.measure import measure


async def test_a_text_is_read_in_sections_and_answered_once() -> None:
    found = await measure(episodes=2, tokens=9_000, memory=20, chunk=500)
    assert found["turns"] == 2 * (found["sections"] + 1)
    assert found["sections"] > 10

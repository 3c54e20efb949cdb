import re
from pathlib import Path

from turnwise.launch.bundle import CARRIED, CARRIED_FOR

# A PEX also runs where no image is. In the image's own processes omegaconf needs the antlr4 that is
# there, so no other is sent to them.
ONLY_IN_A_PEX = {"antlr4-python3-runtime"}
BUILD = Path(__file__).parents[2] / "build-support/carried/BUILD"


def test_a_pex_carries_what_is_sent_to_the_nodes() -> None:
    listed = re.search(r"^CARRIED = \[(.*?)^\]", BUILD.read_text(), re.MULTILINE | re.DOTALL)
    assert listed is not None
    sent = {*CARRIED, *(name for names in CARRIED_FOR.values() for name in names)}
    assert set(re.findall(r'"([^"]+)"', listed[1])) == sent | ONLY_IN_A_PEX

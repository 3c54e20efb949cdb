import re
from pathlib import Path

from turnwise.method import find_method

# A PEX also runs where no image is. In the image's own processes omegaconf needs the antlr4 that is
# there, so no other is sent to them.
ONLY_IN_A_PEX = {"antlr4-python3-runtime"}
BUILD = Path(__file__).parents[2] / "build-support/carried/BUILD"
METHODS = ("agentflow", "memagent", "tau")


def test_a_pex_carries_what_the_methods_send_to_the_nodes() -> None:
    listed = re.search(r"^CARRIED = \[(.*?)^\]", BUILD.read_text(), re.MULTILINE | re.DOTALL)
    assert listed is not None
    sent = {name for method in METHODS for name in find_method(method).distributions}
    assert set(re.findall(r'"([^"]+)"', listed[1])) == sent | ONLY_IN_A_PEX

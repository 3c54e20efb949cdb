"""Our engine client and slime's hooks against a real SGLang server; see `docs/sglang.md`.

slime itself is not needed: the package `slime` is the stand-in that the tests use.
"""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parents[2] / "libs/turnwise/tests"))
sys.path.insert(0, str(Path(__file__).parents[2] / "libs/turnwise/tests/slime_standin"))

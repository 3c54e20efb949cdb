"""Makes `slime_standin` importable where the tests' source root is not on the path."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).parent.parent))

import sys
from pathlib import Path

# The workload uses the vocabulary and the reference of the library's tests.
HERE = Path(__file__).resolve().parent
for folder in (HERE, HERE.parents[1] / "libs" / "tokendelta" / "tests"):
    sys.path.insert(0, str(folder))

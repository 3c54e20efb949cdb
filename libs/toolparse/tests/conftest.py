import sys
from pathlib import Path

# The helpers lie beside the tests; pytest's importlib mode does not add the folder by itself.
sys.path.insert(0, str(Path(__file__).parent))

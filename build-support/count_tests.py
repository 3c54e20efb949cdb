"""Sums the JUnit reports in a folder into one line, `N passed, N failed, N skipped`."""

import sys
from pathlib import Path
from xml.etree import ElementTree


def main(folder: Path) -> int:
    counts = {"tests": 0, "failures": 0, "errors": 0, "skipped": 0}
    for report in folder.glob("**/*.xml"):
        for suite in ElementTree.parse(report).iter("testsuite"):
            for name in counts:
                counts[name] += int(suite.get(name, 0))
    failed = counts["failures"] + counts["errors"]
    passed = counts["tests"] - failed - counts["skipped"]
    print(f"{passed} passed, {failed} failed, {counts['skipped']} skipped")
    return 0 if passed and not failed else 1


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))

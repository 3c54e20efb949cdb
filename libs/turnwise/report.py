"""Rebuilds the report of a run, from the files in its folder.

./pants run libs/turnwise:report -- RUN_DIR
"""

from turnwise.report.__main__ import main

if __name__ == "__main__":
    main()

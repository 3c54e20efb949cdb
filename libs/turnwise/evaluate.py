"""Evaluates any method by its own reward.

./pants run libs/turnwise:evaluate -- --method NAME --hf-checkpoint DIR
./pants run libs/turnwise:evaluate -- --method package.module:Class --base-url URL --model NAME
./pants run libs/turnwise:evaluate -- --method NAME --help              every option
"""

from __future__ import annotations

from turnwise.evaluation.command import main

if __name__ == "__main__":
    main()

"""The run on a laptop: generated questions, experts by rules, and how its policy is made."""

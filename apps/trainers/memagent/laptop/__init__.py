"""The run on a laptop: generated texts and questions, and how its policy is made."""

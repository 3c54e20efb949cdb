"""What the run on a laptop has in place of published data and language models.

Generated problems, rules that play the frozen models, and the demonstrations from which the shipped
planner was made.
"""

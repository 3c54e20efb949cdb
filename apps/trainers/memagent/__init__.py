"""MemAgent: a policy that reads a text of any length section by section and keeps a memory.

The algorithm and where it leaves the published one: `apps.trainers.memagent.episode`.
"""

"""AgentFlow: a trained planner that steers frozen models and tools, one question at a time.

The algorithm and where it leaves the published one: `apps.trainers.agentflow.episode`.
"""

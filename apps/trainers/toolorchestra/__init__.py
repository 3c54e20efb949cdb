"""ToolOrchestra: a trained policy that routes questions to frozen experts at a price.

The algorithm and where it leaves the published one: `apps.trainers.toolorchestra.episode`.
"""

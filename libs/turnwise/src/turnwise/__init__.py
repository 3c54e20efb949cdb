"""Turnwise: reinforcement learning of LLM agents over many turns."""

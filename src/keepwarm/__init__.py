"""Keepwarm serves coding agents from a team's own GPUs: a cache, a queue and a memory budget."""

__version__ = "0.1.0"

"""Measuring a server over its public API, and one report format for every tool that does."""

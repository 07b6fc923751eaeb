"""The composition root: reads options and environment, builds, starts. One module a command."""

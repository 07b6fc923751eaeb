"""The agent on one machine: starts, watches and ends backend processes."""

"""What should run, and who may ask: so far, keys."""

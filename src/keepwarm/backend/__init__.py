"""One replica's front and ranks, and the backends we ship."""

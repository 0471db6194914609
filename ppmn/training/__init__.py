"""Training: the loop, its data and what a run leaves on disk."""

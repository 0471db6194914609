"""Other people's checkpoints as model folders."""

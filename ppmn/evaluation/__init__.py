"""Average Recall of a model, or of predictions in a file."""

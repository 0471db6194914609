"""One-time tools and records: how the files that ship were made."""

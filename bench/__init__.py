"""Side-by-side measurements; each prints ratios."""

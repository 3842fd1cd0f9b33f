"""Measurements: ours beside the obvious way, in one run, as ratios."""

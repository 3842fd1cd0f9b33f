"""Sweeps: many papermill runs of notebooks over a grid, resumable, with a table in the terminal."""

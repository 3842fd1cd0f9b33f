"""Capture, retention, fate and provenance: what became of the facts that a question needs, from a trace alone.

Knows traces and evidence spans. Knows no model, no file and no chart.
"""

"""Readers of other projects' files, as they are."""

"""Generators of examples: each a pure function of its seed."""

"""Tables of scores in the form of a benchmark's own paper."""

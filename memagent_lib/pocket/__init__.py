"""The pocket policy: a small model's world and warm start. Coupled to the weights in ``experiments/pocket``."""

"""The processes of a training run: checks before it, supervisor and trainer during, export after.

``supervisor`` and ``training_process`` are programs; nothing imports them. The algorithm is not in this package.
This ``__init__`` exports nothing; import the modules by name.
"""

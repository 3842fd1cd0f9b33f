"""All code that depends on verl's internals: our settings under verl's names, and overrides of verl's private methods.

``VERL.md`` beside this file lists each override and each registration, with its reason and the test that fails first
when verl changes. Modules named ``cpu_*`` are needed only without a GPU.

This ``__init__`` exports nothing, because each module loads a different library. Import the modules by name.
"""

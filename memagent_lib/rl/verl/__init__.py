"""Every contact with verl's inside: our settings in verl's names, and the classes that override verl's private methods.

``VERL.md`` beside this file lists each override and each entry in a registry, with its reason and the test that fails
first when verl moves. The folder has no door: each module loads another library, so each is imported by its own name.
"""

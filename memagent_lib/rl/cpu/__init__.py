"""What training needs only on a machine without a GPU: settings, platform, engine, rollout servers.

verl loads these modules by name.
"""

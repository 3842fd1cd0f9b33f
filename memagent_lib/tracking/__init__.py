"""MLflow: the store, runs and traces. Knows no notebook and no widget."""

"""A metric of a run at each step, as MLflow has it."""

from memagent_lib.tracking import Run


def history(run: Run, metric: str) -> list[tuple[int, float]]:
    """Return the step and the value of everything that was logged, in order of the steps."""
    found = run.experiment.client.get_metric_history(run.id, metric)
    return sorted((entry.step, entry.value) for entry in found)

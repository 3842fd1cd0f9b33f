"""A training run as processes: launcher, supervisor, the process that trains, the run's folder. Knows no algorithm."""

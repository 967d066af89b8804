"""A sweep: plan, scheduler, trial workers, its run in MLflow."""

"""A sweep: its plan, its scheduler, the workers of its trials, its run in MLflow."""

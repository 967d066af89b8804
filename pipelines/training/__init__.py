"""The work of one worker: loop, scoring, optimizer, watchdog. No Ray, no MLflow."""

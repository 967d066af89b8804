"""What one worker does: the loop, the process group, scoring, optimizer, watchdog, stopping. No Ray, no MLflow."""

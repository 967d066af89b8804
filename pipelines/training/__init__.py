"""What one worker does: loop, scoring, optimizer, watchdog. No Ray, no MLflow."""

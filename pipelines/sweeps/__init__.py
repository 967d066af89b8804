"""Ray Tune."""

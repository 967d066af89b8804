"""A run's bytes, on disk or in a bucket: their format, their writer, and which checkpoints are kept."""

"""A run's bytes, on disk or in a bucket: checkpoints, their writer, which of them stay, the lock."""

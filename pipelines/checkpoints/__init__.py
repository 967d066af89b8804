"""A run's bytes, on disk or in a bucket: format, writer, lock. Which checkpoints stay is decided here too."""

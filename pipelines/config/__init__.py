"""The config of a run: config classes, JSON, fields by dotted names."""

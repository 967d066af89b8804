"""What a run is: config classes, JSON, fields by dotted names."""

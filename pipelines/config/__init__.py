"""What a run is: every frozen config class, its JSON, its fields by dotted names."""

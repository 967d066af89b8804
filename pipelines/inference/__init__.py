"""A trained model: opened, handed to transformers, registered."""

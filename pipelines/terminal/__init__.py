"""Talking to a person."""

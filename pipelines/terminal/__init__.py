"""Talking to a person: command line, errors, tables, progress."""

"""Talking to a person: the command line, errors, tables, progress."""

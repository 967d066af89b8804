"""The search spaces and the papers' tables as named sweeps (to come)."""

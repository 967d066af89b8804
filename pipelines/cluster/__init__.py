"""Joining and starting Ray, the checks of machines, and the runs of Ray Train."""

"""Figures and pages from finished runs."""

"""Figures and pages from finished runs. No torch, no MLflow."""

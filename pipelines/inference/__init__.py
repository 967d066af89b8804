"""Trained models."""

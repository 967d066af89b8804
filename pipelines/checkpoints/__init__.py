"""Bytes on disk or in a bucket."""

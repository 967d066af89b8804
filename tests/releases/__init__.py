"""Data that releases have written, and the promise that later code reads it."""

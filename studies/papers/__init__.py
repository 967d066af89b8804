"""The papers' tables and figures as data, a module for each paper, and the trainings that they are made of."""

from studies.papers import block_recurrent, gpt2, staircase

PAPERS = {"block-recurrent": block_recurrent.TABLES, "gpt2": gpt2.TABLES, "staircase": staircase.TABLES}
"""By paper and by table."""

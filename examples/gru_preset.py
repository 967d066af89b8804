"""A plug-in: the model of gru.py, which importing it registers, and a preset. The model is in a file without commands' modules, so
that an exported folder can hold it: transformers opens it elsewhere."""

from dataclasses import replace

from examples.gru import GruConfig
from pipelines.presets import PRESETS

PRESETS["gru"] = replace(PRESETS["demo-rec"], model=GruConfig(), run="gru", steps=300)

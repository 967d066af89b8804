"""A plug-in: importing it registers the model of gru.py, and adds a preset. gru.py imports no command's modules, so that an
exported folder can hold it, and transformers can open it elsewhere."""

from dataclasses import replace

from examples.gru import GruConfig
from pipelines.presets import PRESETS

PRESETS["gru"] = replace(PRESETS["demo-rec"], model=GruConfig(), run="gru", steps=300)

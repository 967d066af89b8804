"""Draws lanes.png, the picture of lanes, segments, documents and State in docs/concepts.md, from the schedule that training uses.

python docs/lanes.py
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch, Rectangle

from data_prep.lanes import TrainingLanes

LANES = 3
BLOCK = 8
SEGMENT = 32
STEPS = 4
LENGTHS = np.array([72, 40, 88, 24, 48, 32, 64, 56])
"""Tokens of each document; here all are whole blocks."""
COLOURS = ["#8ecae6", "#ffb703", "#90be6d", "#f28482", "#cdb4db", "#b7b7a4", "#f6bd60", "#84a59d"]


def draw(path: Path) -> None:
    """Read the schedule step by step, and draw what each lane reads of a document in the document's colour."""
    figure = Figure(figsize=(11, 3.9), layout="constrained")
    axes = figure.subplots()
    schedule = TrainingLanes(LENGTHS, lanes=LANES, segment_length=SEGMENT, block=BLOCK, seed=1)
    for step in range(STEPS):
        for lane in range(LANES):
            bottom = LANES - 1 - lane
            for span in schedule.spans(step, lane):
                left = step * SEGMENT + span.column * BLOCK
                colour = COLOURS[span.document]
                axes.add_patch(Rectangle((left, bottom + 0.2), span.length, 0.6, facecolor=colour, edgecolor="white"))
                if span.offset == 0:
                    axes.plot([left, left], [bottom + 0.1, bottom + 0.9], color="black", linewidth=2.5)
                    label = f"document {span.document + 1}" if span.length > BLOCK else str(span.document + 1)
                    axes.text(left + 1, bottom + 0.5, label, va="center", fontsize=9)
            if step:
                arrow = FancyArrowPatch(
                    (step * SEGMENT - 5, bottom + 0.83),
                    (step * SEGMENT + 5, bottom + 0.83),
                    arrowstyle="-|>",
                    mutation_scale=12,
                    color="black",
                    connectionstyle="arc3,rad=-0.5",
                )
                axes.add_patch(arrow)
    for step in range(STEPS):
        axes.axvline(step * SEGMENT, color="grey", linewidth=0.8, linestyle=":")
        axes.text((step + 0.5) * SEGMENT, LANES + 0.12, f"step {step + 1}", ha="center", fontsize=10)
    axes.set_xlim(-1, STEPS * SEGMENT + 1)
    axes.set_ylim(-0.1, LANES + 0.4)
    axes.set_yticks([LANES - 0.5 - lane for lane in range(LANES)], [f"lane {lane + 1}" for lane in range(LANES)])
    axes.set_xticks([])
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0)
    axes.set_xlabel(
        "arrow: State passes to the next step       black line: a document begins, and State is reset", fontsize=10
    )
    FigureCanvasAgg(figure).print_figure(path, dpi=130, metadata={"Software": None})


if __name__ == "__main__":
    draw(Path(__file__).with_name("lanes.png"))

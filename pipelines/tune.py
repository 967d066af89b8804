"""Search over the fields of a preset: trials on Ray Tune, bad ones stopped early. Repeating the command resumes the sweep.

    python -m pipelines.tune lr --preset demo-rec --num-workers 1
    python -m pipelines.tune lr+states+window+gate --preset small-rec --num-samples 12 --num-workers 1 --data.store runs/store
    python -m pipelines.tune optim.lr=1e-3,3e-3+model.states=32,64 --search grid --scheduler none --num-workers 1
    python -m pipelines.tune optim.lr=1e-4..1e-2 --scheduler pbt --num-samples 4 --num-workers 1
    python -m pipelines.train runs/small-rec-lr/best.json --run again           # what the sweep found, as a preset

`python -m pipelines.tune --help` lists the spaces. Any field of the preset can be set: `--steps 500 --data.corpus pg19`. The
sweep's folder, `<root>/<run>`, is described in pipelines/sweeps/sweep.py: it is all that a resume needs.

Exit status: 0 the sweep is over; 1 it is, and no trial has a value; 2 a user's error; 75 asked to stop, and saved: rerun the
command to resume.
"""

from __future__ import annotations

from pipelines.sweeps import run_sweep
from pipelines.terminal import cli


def main(argv: list[str]) -> int:
    """Begin or resume a sweep. Returns the exit status, as above. Raises UserError for bad input."""
    return run_sweep(argv).status


if __name__ == "__main__":
    cli.run(main)

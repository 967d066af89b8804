"""Search two learning rates and two numbers of recurrent states with Ray Tune, and print a table of the results.

    python -m examples.own_books                # once: it prepares the text in runs/store
    python -m examples.sweep                    # some minutes; takes the options of pipelines.tune

Run the same command again after an interruption: the sweep resumes, and finished trials are kept.
"""

from pipelines.sweeps import run_sweep
from pipelines.terminal import cli

METRIC = "validation/bits_per_token"

# The space names fields of the preset and their values. A grid tries every combination, here four.
SWEEP = (
    "optim.lr=2e-3,8e-3+model.states=8,32 --preset demo-rec --run sweep --search grid --scheduler none --baseline no"
)
# Each trial is a short training run with one worker. Ray Tune runs as many at once as there are CPUs for.
TRIAL = "--num-workers 1 --steps 100 --validate-every 50 --schedule.warmup-steps 20"


def main(words: list[str]) -> int:
    """Run the sweep, print a line for each trial, the best one first. Returns the exit status."""
    done = run_sweep([*SWEEP.split(), *TRIAL.split(), *words])
    rows = []
    for result in done.results:  # Ray Tune's own ResultGrid
        curve = result.metrics_dataframe  # a row for each validation; None if the trial failed before its first
        if curve is not None and result.config:
            rows.append((curve[METRIC].min(), result.config))
    print("bits/token  learning rate   states   trial")
    for bits, config in sorted(rows, key=lambda row: row[0]):
        print(f"{bits:9.4f}   {config['optim.lr']:13}   {config['model.states']:6}   {config['trial']}")

    # Each trial is an ordinary run in trials/. best.json has the winner, and can be trained like a preset.
    print(
        f"train the best one longer: python -m pipelines.train {done.sweep.folder}/best.json --run longer --steps 1000"
    )
    return done.status


if __name__ == "__main__":
    cli.run(main)

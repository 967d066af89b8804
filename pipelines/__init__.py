"""One entry script per stage (prepare, train, evaluate), and what they share: config, presets, loop, checkpoints, tracking."""

"""What is written down of a run, and read back: recordings, timelines, checkpoints, states to go on from."""

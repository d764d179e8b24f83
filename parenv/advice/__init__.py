"""From what a run was measured to cost to advice on how to set it."""

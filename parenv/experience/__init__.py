"""What a pool yields: containers of arrays. Pure, so that workers and driver use the same."""

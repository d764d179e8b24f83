"""What runs in a worker: one message at a time, one rollout at a time."""

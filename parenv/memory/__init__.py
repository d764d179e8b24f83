"""Layout of shared memory: spaces, rollout slots and their leases, step buffers. Only ``shared`` calls the system."""

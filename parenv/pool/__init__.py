"""AsyncWorkerPool: the driver's side of experience parallelism."""

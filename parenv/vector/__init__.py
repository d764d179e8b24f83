"""ParallelVectorEnv: Gymnasium's VectorEnv over the same workers, memory and processes as the pool."""

"""Purpose-made environments that prove order, loss and duplication, and checks of vector envs, for tests of others."""

from parenv.testing.ledger import LedgerEnv, check_ledger
from parenv.testing.vector_env_check import VectorEnvReport, check_vector_env

__all__ = ["LedgerEnv", "VectorEnvReport", "check_ledger", "check_vector_env"]

"""Purpose-made environments that prove order, loss and duplication, and checks of environments, for tests of others."""

from parenv.testing.ledger import LedgerEnv, check_ledger
from parenv.testing.sharing_check import SharingReport, check_sharing
from parenv.testing.vector_env_check import VectorEnvReport, check_vector_env

__all__ = ["LedgerEnv", "SharingReport", "VectorEnvReport", "check_ledger", "check_sharing", "check_vector_env"]

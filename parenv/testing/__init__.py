"""Purpose-made environments that prove order, loss and duplication, for the tests of libraries that build on parenv."""

from parenv.testing.ledger import LedgerEnv, check_ledger

__all__ = ["LedgerEnv", "check_ledger"]

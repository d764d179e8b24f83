"""From spaces to bytes: what a rollout slot holds and where, and who holds which slot. Pure, but for ``shared``."""

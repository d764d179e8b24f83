"""Check which memory is pinned, and that it is unpinned."""

from __future__ import annotations

from policies import zeros

from parenv import AsyncWorkerPool
from parenv.learning.pinning import Pins, slot_of
from parenv.testing import LedgerEnv


class Cudart:
    """Stand-in for the CUDA runtime that records each registration of memory."""

    def __init__(self, result: int = 0) -> None:
        self.result = result
        self.registered: dict[int, int] = {}
        self.unregistered: list[int] = []

    def cudaHostRegister(self, address: int, nbytes: int, flags: int) -> int:  # noqa: N802
        assert address not in self.registered
        self.registered[address] = nbytes
        return self.result

    def cudaHostUnregister(self, address: int) -> int:  # noqa: N802
        self.unregistered.append(address)
        return 0


def test_each_slot_is_registered_once_with_all_its_arrays_and_unregistered() -> None:
    cudart = Cudart()
    pins = Pins(cudart)
    with AsyncWorkerPool(lambda: LedgerEnv(0), zeros, num_envs=1, num_workers=0, rollout_length=6) as pool:
        stream = pool.rollouts()
        for _ in range(20):
            rollout = next(stream)
            pins.pin(rollout)
            address, nbytes = slot_of(rollout) or (0, 0)
            assert address % 4096 == 0
            for array in (rollout.observations, rollout.rewards, rollout.actions, rollout.truncated):
                assert address <= array.ctypes.data < address + nbytes
        assert slot_of(rollout.copy()) is None
        pins.pin(rollout.copy())
    assert 1 <= len(cudart.registered) < 20
    pins.close()
    assert sorted(cudart.unregistered) == sorted(cudart.registered)


def test_a_refused_registration_is_not_repeated() -> None:
    cudart = Cudart(result=2)
    pins = Pins(cudart)
    with AsyncWorkerPool(lambda: LedgerEnv(0), zeros, num_envs=1, num_workers=0, rollout_length=6) as pool:
        rollout = next(pool.rollouts())
        pins.pin(rollout)
        pins.pin(rollout)
    pins.close()
    assert len(cudart.registered) == 1
    assert cudart.unregistered == []

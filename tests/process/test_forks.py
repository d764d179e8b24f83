"""Check that children forked by the user do not affect the open pools and vector envs of their parent."""

from __future__ import annotations

import pytest
from scripts import printed_by

PREAMBLE = """
import gc, json, multiprocessing, os, sys
import gymnasium as gym, numpy as np
from parenv import AsyncWorkerPool, ParallelVectorEnv

def zeros(observations):
    return np.zeros(len(observations), int)

class Pool:
    def __init__(self, num_workers=2):
        self.it = AsyncWorkerPool("CartPole-v1", zeros, num_workers=num_workers, num_envs=4, rollout_length=10)
        self.stream = self.it.rollouts()
    def use(self):
        next(self.stream)

class VectorEnv:
    def __init__(self, num_workers=2):
        self.it = ParallelVectorEnv([lambda: gym.make("CartPole-v1")] * 4, num_workers=num_workers)
        self.it.reset()
    def use(self):
        self.it.step(np.zeros(4, int))

def exit_code_of(pid):
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])

of = KIND(NUM_WORKERS)
of.use()
"""
AFTER = """
for _ in range(50):
    of.use()
of.it.close()
print("fine", flush=True)
"""
CHILDREN = {
    "sys.exit": "if not (pid := os.fork()): sys.exit(7)\nassert exit_code_of(pid) == 7",
    "close": "if not (pid := os.fork()): of.it.close(); of.it.close(); sys.exit(7)\nassert exit_code_of(pid) == 7",
    "garbage": "if not (pid := os.fork()): of = None; gc.collect(); sys.exit(7)\nassert exit_code_of(pid) == 7",
    "one after the other": (
        "for code in range(5):\n    if not (pid := os.fork()): sys.exit(code)\n    assert exit_code_of(pid) == code"
    ),
    "a process of multiprocessing": (
        "child = multiprocessing.get_context('fork').Process(target=print)\nchild.start()\nchild.join(40)\n"
        "assert child.exitcode == 0"
    ),
    "a pool of its own": (
        "if not (pid := os.fork()):\n    of = KIND(NUM_WORKERS)\n    of.use()\n    of.it.close()\n    sys.exit(7)\n"
        "assert exit_code_of(pid) == 7"
    ),
    "workers of a data loader": (
        "import torch\n"
        "loader = torch.utils.data.DataLoader(list(range(8)), num_workers=2, multiprocessing_context='fork')\n"
        "assert sum(int(batch) for batch in loader) == 28"
    ),
}


USE_IN_A_CHILD = """
if not (pid := os.fork()):
    try:
        of.use()
    except ERROR as error:
        print(error, flush=True)
    sys.exit(7)
assert exit_code_of(pid) == 7
"""


def run(kind: str, then: str, num_workers: int = 2) -> str:
    """Return the output of a script that forks children while a pool or a vector env is open."""
    script = PREAMBLE + then + AFTER
    return printed_by(script.replace("KIND", kind).replace("NUM_WORKERS", str(num_workers)))


@pytest.mark.one_in(4)
@pytest.mark.parametrize("kind", ["Pool", "VectorEnv"])
@pytest.mark.parametrize("children", [list(CHILDREN)[:-2], list(CHILDREN)[-2:]], ids=["short", "long"])
def test_forked_children_may_end_in_any_way_and_their_parent_continues(kind: str, children: list[str]) -> None:
    then = "\nof.use()\n".join(f"{CHILDREN[child]}\nprint({child!r}, flush=True)" for child in children)
    found = run(kind, then).splitlines()
    assert [line for line in found if line] == [*children, "fine"]


@pytest.mark.one_in(6)
@pytest.mark.parametrize("num_workers", [0, 2])
@pytest.mark.parametrize(
    ("kind", "error"), [("Pool", "parenv.errors.PoolClosedError"), ("VectorEnv", "gym.error.ClosedEnvironmentError")]
)
def test_using_an_object_of_the_parent_in_a_forked_child_is_an_error(kind: str, error: str, num_workers: int) -> None:
    message, fine = run(kind, "import parenv" + USE_IN_A_CHILD.replace("ERROR", error), num_workers).splitlines()
    assert "belongs to process" in message
    assert "in its forked child" in message
    assert "Make another one in the child, or use it in the parent" in message
    assert fine == "fine"


@pytest.mark.more
def test_a_child_forked_in_the_with_block_of_a_pool_ends_without_an_error() -> None:
    script = (
        "with of.it:\n    if not (pid := os.fork()): sys.exit(7)\n    assert exit_code_of(pid) == 7\n"
        "    for _ in range(50): of.use()"
    )
    assert printed_by(PREAMBLE.replace("KIND(NUM_WORKERS)", "Pool()") + script + "\nprint('fine')") == "fine\n"


@pytest.mark.more
def test_a_child_writes_nothing_into_its_parents_trace_and_recording(tmp_path: object) -> None:
    script = f"""
pool = AsyncWorkerPool("CartPole-v1", zeros, num_workers=1, record="{tmp_path}/run.journal")
pool.trace("{tmp_path}/run.json")
for rollout in pool.rollouts():
    if not (pid := os.fork()): sys.exit(7)
    assert exit_code_of(pid) == 7
    if pool.statistics().rollouts == 5: break
pool.close()
events = json.load(open("{tmp_path}/run.json"))
assert sum(event["name"] == "rollout" for event in events) == 5
lines = [json.loads(line) for line in open("{tmp_path}/run.journal")]
assert sum(line[0] == "digest" for line in lines[1:]) == 5
print("fine")
"""
    assert printed_by(PREAMBLE.partition("of = KIND")[0] + script) == "fine\n"

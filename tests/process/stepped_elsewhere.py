"""Environments for tests of other interpreters. They import only numpy, so they need no other package there."""

import os
import signal
import sys
import time

import numpy as np


class Space:
    """Space that has only the given fields."""

    def __init__(self, **fields):
        self.__dict__.update(fields)


class Ledger:
    """Environment that observes its seed, the episode number and the step. The reward is the step.

    Args:
        length: Number of steps of an episode.
        fault: Fault to cause: ``"raise"``, ``"kill"``, ``"hang"``, ``"shape"`` or ``"exit"``. Default: none.
        at: Step in which the fault happens.
        mark: File that is created with the fault, so that it happens only once. Default: no limit.
    """

    def __init__(self, length=5, fault="", at=3, mark=""):
        print("an environment may print")
        self.observation_space = Space(low=-np.inf, high=np.inf, shape=(4,), dtype=np.float64)
        self.action_space = Space(n=3)
        self.length, self.fault, self.at, self.mark = length, fault, at, mark
        self.seed_of_episode, self.episode, self.t = -1, -1, 0

    def reset(self, seed=None, options=None):
        self.seed_of_episode = self.seed_of_episode if seed is None else seed
        self.episode, self.t = self.episode + 1, 0
        return self._observation(), {"episode": self.episode}

    def step(self, action):
        self.t += 1
        if self.t == self.at and self._is_first():
            self._break()
        return self._observation(), float(self.t), self.t == self.length, False, {"action": int(action)}

    def close(self):
        pass

    def where(self):
        return sys.executable

    def pid(self):
        return os.getpid()

    def _observation(self):
        return np.array([self.seed_of_episode % 1000, self.episode, self.t, 0.0])

    def _is_first(self):
        """Return whether there is a fault to cause that has not happened in any process."""
        if not self.fault or not self.mark:
            return bool(self.fault)
        try:
            os.close(os.open(self.mark, os.O_CREAT | os.O_EXCL))
        except FileExistsError:
            return False
        return True

    def _break(self):
        if self.fault == "raise":
            raise ValueError(f"broken at step {self.t}")
        if self.fault == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        if self.fault == "hang":
            time.sleep(1000)
        if self.fault == "shape":
            self._observation = lambda: np.zeros(7)
        if self.fault == "exit":
            os._exit(3)


class OldGymLedger(Ledger):
    """Ledger with the interface of gym 0.21: ``seed()``, ``reset()`` without a seed, and four results of ``step()``."""

    def seed(self, seed=None):
        self.seed_of_episode = seed

    def reset(self):
        self.episode, self.t = self.episode + 1, 0
        return self._observation()

    def step(self, action):
        observation, reward, _, _, info = Ledger.step(self, action)
        done = self.t == self.length
        return (
            observation,
            reward,
            done,
            dict(info, **{"TimeLimit.truncated": True} if done and self.episode % 2 else {}),
        )


class Nested(Ledger):
    """Ledger with nested observation and action spaces, and with infos of many types."""

    def __init__(self, length=5):
        Ledger.__init__(self, length)
        number = Space(low=0.0, high=1.0, shape=(2,), dtype=np.float32)
        self.observation_space = Space(spaces={"a": number, "b": Space(spaces=(Space(n=5), number))})
        self.action_space = Space(spaces={"x": Space(nvec=np.array([2, 3])), "y": number})

    def _observation(self):
        row = np.full(2, self.t / 10, np.float32)
        return {"a": row, "b": (self.t % 5, row)}

    def step(self, action):
        self.t += 1
        info = {"x": action["x"], "text": f"at {self.t}", "deep": {"pair": np.arange(2), "no": object()}}
        return self._observation(), float(action["y"][0]), self.t == self.length, False, info


class Returning(Ledger):
    """Ledger whose steps return this reward and this flag."""

    def __init__(self, reward, terminated=False):
        Ledger.__init__(self)
        self.returned = reward, terminated

    def step(self, action):
        return self._observation(), self.returned[0], self.returned[1], False, {}


class Debugged(Ledger):
    """Ledger whose steps start a debugger."""

    def step(self, action):
        breakpoint()
        return Ledger.step(self, action)


class WithoutSpaces:
    """Environment without spaces."""

    def reset(self, seed=None, options=None):
        return 0, {}


class OddSpace(Ledger):
    """Ledger whose observation space has no known fields."""

    def __init__(self):
        Ledger.__init__(self)
        self.observation_space = Space(words=3)


class Eater(Ledger):
    """Ledger that allocates about 31 GiB of memory in a step."""

    def step(self, action):
        self.kept = [np.ones(1 << 20) for _ in range(4000)]
        return Ledger.step(self, action)


class Sleeper(Ledger):
    """Ledger whose steps take some time. It observes when its last step has begun and ended, instead of seeds."""

    def __init__(self, seconds):
        Ledger.__init__(self)
        self.seconds, self.begun, self.ended = seconds, 0.0, 0.0

    def step(self, action):
        self.begun = time.monotonic()
        time.sleep(self.seconds)
        self.ended = time.monotonic()
        return Ledger.step(self, action)

    def _observation(self):
        return np.array([self.begun, self.episode, self.t, self.ended])


def failing(**arguments):
    raise RuntimeError("no simulator here")

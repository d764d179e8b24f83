"""An environment for tests of other interpreters that imports nothing, so it runs in an interpreter without numpy."""


class Space:
    """Space that has only the given fields."""

    def __init__(self, **fields):
        self.__dict__.update(fields)


class Counter:
    """Environment that observes its steps and the sum of its actions as a list."""

    def __init__(self):
        self.observation_space = Space(low=0.0, high=100.0, shape=(2,), dtype="float32")
        self.action_space = Space(low=-1.0, high=1.0, shape=(2,), dtype="float32")
        self.t, self.total = 0, 0.0

    def reset(self, seed=None, options=None):
        self.t, self.total = 0, 0.0
        return [0.0, 0.0], {}

    def step(self, action):
        self.t += 1
        self.total += action[0] + action[1]
        return [float(self.t), self.total], 1.0, self.t == 4, False, {"t": self.t, "kind": type(action).__name__}

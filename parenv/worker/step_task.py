"""What a worker of a vector env has to do, without messages or processes."""

from __future__ import annotations

import contextlib
import copy
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import cloudpickle
from gymnasium import Wrapper
from gymnasium.vector import AutoresetMode, VectorEnv

from parenv.envs.batch import EnvBatch, Trouble
from parenv.envs.factories import Factories
from parenv.envs.fitting import Fit
from parenv.envs.made import check_made
from parenv.envs.seeding import RandomState, environment_seed
from parenv.errors import ConfigurationError
from parenv.memory.board import Board
from parenv.memory.infos import InfoWriter
from parenv.memory.kinds import kind_numbers
from parenv.memory.progress import Progress
from parenv.memory.sampling import generators
from parenv.memory.spaces import describe
from parenv.options import WorkerOptions
from parenv.protocol.data import is_data
from parenv.protocol.frames import Sender
from parenv.protocol.messages import Actions, Ready, Remarks

SPACES = ("observation_space", "action_space")
MEASURE_S, MAX_MEASURE_S, MIN_MEASURED_STEPS = 0.05, 1.0, 20


@dataclass(frozen=True)
class StepJob:
    """What every worker of a vector env needs to know.

    Args:
        factories: make the sub-environments.
        options: the user's.
        shares: sub-environments of each worker.
        autoreset_mode: value of Gymnasium's enum.
        seed: root of the seeds that sub-environments get when they are restarted.
        cores: one for each worker to keep to, or ``None``.
    """

    factories: Factories
    options: WorkerOptions
    shares: tuple[int, ...]
    autoreset_mode: str
    seed: int
    cores: tuple[int, ...] | None = None


class StepStation:
    """A worker's sub-environments with all that can be asked of them; knows nothing of processes.

    Args:
        job: what to make.
        sender: which share of it.
        progress: where to say what is going on.
    """

    def __init__(self, job: StepJob, sender: Sender, progress: Progress) -> None:
        self._job, self._sender, self._progress = job, sender, progress
        self._warnings: list[str] = []
        self.first_env_id = sum(job.shares[: sender.worker])
        self.envs: list[Any] = []
        job.factories.register()
        if job.options.setup_fn is not None:
            progress.begin("setup_fn")
            job.options.setup_fn(sender.worker)
        for env_id in range(self.first_env_id, self.first_env_id + job.shares[sender.worker]):
            progress.begin("making the environment", env_id)
            env = job.factories.make(env_id)
            if isinstance(env, VectorEnv):
                raise ConfigurationError(f"env_fns must make single environments, but one makes a {env}")
            check_made(env, env_id, enumerate(self.envs, self.first_env_id))
            self.envs.append(env)

    def ready(self) -> Ready:
        """What the driver needs to know of the sub-environments."""
        first, spaces = self.envs[0], self.spaces()
        described = {name: [list(map(describe, distinct)), which] for name, (distinct, which) in spaces.items()}
        sampling = {name: of for name in spaces if is_data(of := generators(getattr(first, name)))}
        metadata = {key: value for key, value in first.metadata.items() if is_data(value)}
        extras = {"metadata": metadata, "render_mode": first.render_mode, "generators": sampling}
        return Ready(described, len(self.envs), extras, [])

    def spaces(self) -> dict[str, tuple[list[Any], list[int]]]:
        """The different spaces of the sub-environments by name, and which of them each has."""
        return {name: _each_once([getattr(env, name) for env in self.envs]) for name in SPACES}

    def lay_out(self, board: Board) -> None:
        """Be told where the board is."""
        workers, worker = len(self._job.shares), self._sender.worker
        self._board = board
        self.info_writer = InfoWriter(board.info_kinds, board.infos, kind_numbers(worker, workers).__getitem__)
        self.batch = EnvBatch(
            self.envs,
            self.first_env_id,
            board,
            AutoresetMode(self._job.autoreset_mode),
            self.info_writer,
            self._progress,
            self._restart_seeds(),
            Fit.of(self._job.options, self._warn),
        )

    def give(self, actions: Actions) -> None:
        """Be told about the actions to come."""
        if actions.dtypes is not None:
            self._board.view_actions(actions.dtypes)
        if actions.values:
            self.batch.give(cloudpickle.loads(actions.values))

    def answer(self, method: str, columns: Sequence[int], *arguments: Any) -> list[Any]:
        """Answer a call; exceptions of single environments are among the batch's troubles."""
        if method == "reset":
            seeds, options = arguments
            self.batch.reset(columns, seeds, options)
            return []
        if method == "measure":
            return [self._measure()]
        answers = self._each(columns, _METHODS[method], arguments)
        self.batch.find_steps(columns)
        return answers

    def remarks(self) -> Remarks | None:
        """What would not go on the board since the last time."""
        batch, kinds = self.batch, self.info_writer.new
        if not (batch.infos or batch.observations or kinds):
            return None
        remarks = Remarks([list(kind) for kind in kinds], batch.infos, batch.observations)
        self.info_writer.new, batch.infos, batch.observations = [], [], []
        return remarks

    def troubles(self) -> list[Trouble]:
        """Exceptions of environments since the last time."""
        troubles, self.batch.troubles = self.batch.troubles, []
        return troubles

    def warnings(self) -> list[str]:
        """What the user is to be warned of since the last time."""
        warnings, self._warnings = self._warnings, []
        return warnings

    def close(self) -> None:
        """Close the environments and call the user's cleanup."""
        with contextlib.ExitStack() as stack:
            if self._job.options.cleanup_fn is not None:
                stack.callback(self._job.options.cleanup_fn, self._sender.worker)
            for env in self.envs:
                stack.callback(env.close)

    def _warn(self, text: str) -> None:
        self._warnings.append(text)
        self.batch.remarkable = True

    def _measure(self) -> float:
        """Seconds per env step, resets included, of one more sub-environment that is thrown away."""
        self._progress.begin("measuring a step", self.first_env_id)
        with RandomState(0), contextlib.closing(self._job.factories.make(self.first_env_id)) as env:
            # A copy, because other environments may have the same space.
            space = copy.deepcopy(env.action_space)
            space.seed(0)
            env.reset(seed=0)
            steps, cost, began = 0, 0.0, time.perf_counter()
            while cost < MEASURE_S or (steps < MIN_MEASURED_STEPS and cost < MAX_MEASURE_S):
                _, _, terminated, truncated, _ = env.step(space.sample())
                if terminated or truncated:
                    env.reset()
                steps, cost = steps + 1, time.perf_counter() - began
            began = time.perf_counter()
            for _ in range(steps):
                space.sample()
            return max(cost - (time.perf_counter() - began), 0.0) / steps

    def _each(self, columns: Sequence[int], function: Callable[..., Any], arguments: tuple[Any, ...]) -> list[Any]:
        answers = []
        for position, column in enumerate(columns):
            env_id, answer = self.first_env_id + column, None
            self._progress.begin("call", env_id)
            try:
                answer = function(self.envs[column], position, *arguments)
            except BaseException as error:
                self.batch.troubles.append(Trouble(env_id, "call", error))
            answers.append(answer)
        return answers

    def _restart_seeds(self) -> list[int] | None:
        if not self._sender.generation:
            return None
        env_ids = range(self.first_env_id, self.first_env_id + len(self.envs))
        return [environment_seed(self._job.seed, env_id, self._sender.generation) for env_id in env_ids]


def _call(env: Any, position: int, name: str, args: Any, kwargs: Any) -> Any:
    attribute = env.get_wrapper_attr(name)
    return attribute(*args, **kwargs) if callable(attribute) else attribute


def _set_attr(env: Any, position: int, values: list[Any], name: str) -> None:
    env.set_wrapper_attr(name, values[position])


def _is_wrapped(env: Any, position: int, module: str, name: str) -> bool:
    """Whether a wrapper is of a class or of its subclasses; by name, so that a worker need not import it."""
    while isinstance(env, Wrapper):
        if any((kind.__module__, kind.__qualname__) == (module, name) for kind in type(env).__mro__):
            return True
        env = env.env
    return False


_METHODS: dict[str, Callable[..., Any]] = {"call": _call, "set_attr": _set_attr, "is_wrapped": _is_wrapped}


def _each_once(spaces: Sequence[Any]) -> tuple[list[Any], list[int]]:
    """Different spaces once each, and which environment has which."""
    distinct: list[Any] = []
    which = []
    for space in spaces:
        found = next((i for i, other in enumerate(distinct) if other == space), len(distinct))
        if found == len(distinct):
            distinct.append(space)
        which.append(found)
    return distinct, which

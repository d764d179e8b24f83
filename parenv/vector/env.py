"""ParallelVectorEnv: the public class."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, Self

from gymnasium import Env, Space, logger
from gymnasium.error import AlreadyPendingCallError, ClosedEnvironmentError, NoAsyncCallError
from gymnasium.vector import AutoresetMode, VectorEnv

from parenv.argument_checks import at_least
from parenv.options import Placing, WorkerOptions
from parenv.supervision.one_thread import OneThread
from parenv.vector.arguments import as_env_ids, each_seed, each_value, without_mask
from parenv.vector.backend import VectorStatistics
from parenv.vector.vector_plan import (
    CallerSteps,
    ObservationMode,
    OnWorkerDeath,
    SpinUs,
    VectorArguments,
    make_vector_plan,
)
from parenv.vector.vector_session import StepResults
from parenv.vector.worker_choice import begin

RESERVED = ("reset", "step", "close", "_setattr", "_check_spaces")
_IDLE = ""


class ParallelVectorEnv(VectorEnv[Any, Any, Any]):
    """Gymnasium's ``AsyncVectorEnv`` with many sub-environments per worker: same arguments, same behaviour.

    Results are those of ``SyncVectorEnv`` on the same seeds and actions. Beside :meth:`step` there are :meth:`send` and
    :meth:`recv`, which step whoever is ready. Used as a context manager it is closed at the end.

    Args:
        env_fns: one factory for each sub-environment.
        shared_memory: accepted; arrays of fixed size lie in shared memory, everything else travels by message.
        copy: whether returned observations are copies. With ``False`` they are arrays over the shared memory, which the
            next step overwrites.
        context: accepted; all start methods mean the same here.
        daemon: accepted; workers always end with this process, and may have children of their own.
        worker: must be ``None``.
        observation_mode: ``"same"``, ``"different"`` (equal shapes and dtypes), or a pair of batched and single space.
        autoreset_mode: what happens where an episode ends.
        max_concurrency: how many sub-environments may be stepped at the same time: a limit on ``num_workers``.
        num_workers: worker processes; ``None``: one per usable core; 0: everything in this process; ``"auto"``: one per
            core or 0, whichever a measurement of the first sub-environment's step promises to be faster.
        batch_size: rows that :meth:`recv` returns; all by default.
        step_timeout_s: seconds that an env step or a call may take before its worker counts as hung and is killed, its
            stack shown; ``None``: ``WorkerOptions.step_timeout_s``. ``WorkerOptions.reset_timeout_s`` is the same for
            resets. Without effect with ``num_workers=0``, where there is nobody to wait for it; that also goes for the
            limit of a wait.
        on_worker_death: ``"raise"``: a dead worker closes the env; ``"restart"``: it is started again, as often as
            ``WorkerOptions.restart`` allows; the current episodes of its sub-environments are truncated and flagged in
            ``infos["worker_restarted"]``.
        workers: how workers are set up and how long they may take to start and to close.
        placement: where workers run; ``None``: on this machine. On hosts, every step costs a round trip over the
            network, where it costs some microseconds here: prefer :class:`AsyncWorkerPool` across machines, or
            :meth:`send` to one half of the sub-environments while the other is under way. ``num_workers`` has to be
            given, and counts the workers on all hosts; a host that is lost is the death of its workers, and those that
            are restarted wait up to ``WorkerOptions.start_timeout_s`` for another.
        caller_steps: whether this process steps a part of the sub-environments itself while workers step theirs, which
            is faster where a step is cheap; it takes the place of a worker where ``num_workers`` is left out. Given up
            is what a process of their own protects from: a crash of native code in that part takes this process along,
            and a hang there cannot be cut. The ``timeout`` of a wait does not interrupt this process either: the wait
            ends when its part is done, and raises only if workers still step then. ``"auto"``: where that pays, and the
            first sub-environment's module brings no native code that could crash.
        spin_us: microseconds that this process and workers look whether they have been rung for, before they sleep and
            have to be woken. ``"auto"``: 100 where the usable cores suffice for all workers and this process, while
            waits are that short, and with at most a tenth of a core spent beyond the wake-ups that are saved; 0: never.
            :meth:`statistics` has what it took.
        spaces: observation and action space of one sub-environment, where the env is to have these very objects, with
            their class and what that samples; ``"make"``: those of an environment that is made in this process for it
            and closed; ``None``: as workers describe them, by which a ``Space`` class of your own is not known here.
        strict_infos: what a value in an info is that has no plain form: with ``False`` it is left out, with one warning
            that names it; with ``True`` it is a :class:`~parenv.NotDataError`. With ``num_workers=0`` it is there.

    Attributes:
        num_workers: worker processes; 0: everything in this process.
        num_caller_envs: sub-environments that this process steps itself beside workers, the last ones.
        measured_step_s: seconds that an env step was found to take; ``None`` where nothing was measured.

    Raises:
        ConfigurationError: an argument is wrong, or cannot be honoured.
        RuntimeError: the spaces of the sub-environments do not go together.

    >>> import gymnasium as gym
    >>> envs = ParallelVectorEnv([lambda: gym.make("CartPole-v1")] * 4, num_workers=2)
    >>> observations, infos = envs.reset(seed=42)
    >>> observations, rewards, terminated, truncated, infos = envs.step(envs.action_space.sample())
    >>> observations.shape, rewards
    ((4, 4), array([1., 1., 1., 1.]))
    >>> envs.close()
    """

    def __init__(
        self,
        env_fns: Sequence[Callable[[], Env[Any, Any]]],
        shared_memory: bool = True,
        copy: bool = True,
        context: str | None = None,
        daemon: bool = True,
        worker: None = None,
        observation_mode: ObservationMode = "same",
        autoreset_mode: str | AutoresetMode = AutoresetMode.NEXT_STEP,
        max_concurrency: int | None = None,
        *,
        num_workers: int | Literal["auto"] | None = None,
        batch_size: int | None = None,
        step_timeout_s: float | None = None,
        on_worker_death: OnWorkerDeath = "raise",
        workers: WorkerOptions | None = None,
        placement: Placing = None,
        caller_steps: CallerSteps = False,
        spin_us: SpinUs = "auto",
        spaces: tuple[Space[Any], Space[Any]] | Literal["make"] | None = None,
        strict_infos: bool = False,
    ) -> None:
        plan = make_vector_plan(
            VectorArguments(
                env_fns=env_fns,
                context=context,
                worker=worker,
                observation_mode=observation_mode,
                autoreset_mode=autoreset_mode,
                max_concurrency=max_concurrency,
                num_workers=num_workers,
                batch_size=batch_size,
                step_timeout_s=step_timeout_s,
                on_worker_death=on_worker_death,
                workers=workers,
                placement=placement,
                caller_steps=caller_steps,
                spin_us=spin_us,
                spaces=spaces,
                strict_infos=strict_infos,
            )
        )
        self.env_fns, self.shared_memory, self.copy = env_fns, shared_memory, copy
        self.context, self.daemon, self.worker = context, daemon, worker
        self.observation_mode, self.max_concurrency = observation_mode, max_concurrency
        self.autoreset_mode = plan.job.autoreset_mode
        self.num_envs, self.batch_size = plan.num_envs, plan.batch_size
        plan, session, self.measured_step_s = begin(plan, copy)
        self._session = session
        self._pending, self._is_closed = _IDLE, False
        self._refusal = f"Trying to operate on `{type(self).__name__}`, after a call to `close()`."
        about = session.close, plan.job.options.close_timeout_s, ClosedEnvironmentError, self._refusal
        self._one_thread = OneThread(self, "the vector env", session.owner, session, *about)
        self.num_workers = len(plan.worker_shares)
        self.num_caller_envs = plan.caller_rows if plan.worker_shares else 0
        self.metadata, self.render_mode = session.metadata, session.render_mode
        of_all = session.spaces
        self.single_observation_space, self.observation_space = of_all.single_observation, of_all.observation
        self.single_action_space, self.action_space = of_all.single_action, of_all.action

    @property
    def closed(self) -> bool:  # type: ignore[override,unused-ignore]
        """Whether :meth:`close` was called, or a worker is gone that was not restarted."""
        return self._is_closed or self._session.backend.closed

    @closed.setter
    def closed(self, closed: bool) -> None:
        self._is_closed = closed

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def statistics(self) -> VectorStatistics:
        """What has happened so far, and what waiting awake has taken."""
        return self._session.backend.statistics()

    @property
    def envs(self) -> list[Any]:
        """The sub-environments themselves, as in ``SyncVectorEnv``; with ``num_workers=0`` only."""
        if self.num_workers:
            raise AttributeError("the sub-environments are in its workers: call() reaches them, or use num_workers=0")
        return list(self._session.backend.envs)

    @property
    def np_random_seed(self) -> Any:
        """The seed of each sub-environment's random generator."""
        return self.get_attr("np_random_seed")

    @property  # type: ignore[misc,unused-ignore]
    def np_random(self) -> Any:
        """A copy of each sub-environment's random generator."""
        return self.get_attr("np_random")

    def reset(self, *, seed: Any = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        """Begin an episode in all sub-environments, or in those of ``options["reset_mask"]``.

        Args:
            seed: ``None``; an integer, which gives ``seed + i`` to the ``i``-th; or a list with one for each.
            options: a mapping for all of them, or a list with one for each. ``reset_mask``, bool ``[num_envs]``, is
                taken out of a copy.

        Returns:
            Observations of all, and infos.
        """
        self.reset_async(seed, options)
        return self.reset_wait()

    def reset_async(self, seed: Any = None, options: Any = None) -> None:
        """Begin a reset without waiting for it."""
        with self._one_thread:
            self._check_free("reset_async")
            chosen, rest = without_mask(options, self.num_envs)
            self._session.begin_reset(chosen, each_seed(seed, self.num_envs), rest)
            self._pending = "reset"

    def reset_wait(self, timeout: float | None = None) -> tuple[Any, dict[str, Any]]:
        """Wait for a reset.

        Raises:
            NoAsyncCallError: there is none.
            multiprocessing.TimeoutError: it takes longer than ``timeout`` seconds. It goes on; its results are dropped.
        """
        with self._one_thread:
            self._end_pending("reset", "reset_wait")
            return self._session.end_reset(timeout, "reset_wait")

    def step(self, actions: Any) -> StepResults:
        """Step all sub-environments.

        Args:
            actions: ``[num_envs, ...]``, as :attr:`action_space` has it; arrays are made of lists and tensors.

        Returns:
            Observations; rewards, float64 ``[num_envs]``; terminated and truncated, bool ``[num_envs]``; infos.
        """
        self.step_async(actions)
        return self.step_wait()

    def step_async(self, actions: Any) -> None:
        """Begin a step without waiting for it.

        Raises:
            ResetNeeded: with ``DISABLED``: the episode of a sub-environment has ended.
        """
        with self._one_thread:
            self._check_free("step_async")
            self._session.begin_step(actions)
            self._pending = "step"

    def step_wait(self, timeout: float | None = None) -> StepResults:
        """Wait for a step.

        Raises:
            NoAsyncCallError: there is none.
            multiprocessing.TimeoutError: it takes longer than ``timeout`` seconds. It goes on, but its results are
                dropped, and the next step begins when it is over.
        """
        with self._one_thread:
            self._end_pending("step", "step_wait")
            return self._session.end_step(timeout, "step_wait")

    def send(self, actions: Any, env_ids: Any = None) -> None:
        """Have some sub-environments take a step, without waiting for them; :meth:`recv` has the results.

        Args:
            actions: one for each of them, batched as in :meth:`step`.
            env_ids: which, as integers; all by default. None of them may be under way.

        Raises:
            ValueError: ``env_ids`` are no such integers, or there is another number of actions.
            AlreadyPendingCallError: one of them is under way, or another call is.
            ResetNeeded: with ``DISABLED``: the episode of one of them has ended.
        """
        with self._one_thread:
            self._check_idle("send")
            ids = as_env_ids(env_ids, self.num_envs)
            if busy := self._session.in_flight(ids):
                raise AlreadyPendingCallError(f"env_ids {busy} are still under way: recv() them first", "send")
            self._session.send(actions, ids)

    def recv(self, timeout: float | None = None, batch_size: int | None = None) -> StepResults:
        """The results of the ``batch_size`` sub-environments that are ready first.

        With ``DISABLED``, nobody can be reset while others are under way. So that it does not end there, fewer rows are
        returned where fewer are under way and the episodes of all others have ended.

        Args:
            timeout: seconds to wait at most.
            batch_size: rows, this time; ``None``: as the env was made.

        Returns:
            As :meth:`step`, ``batch_size`` rows; ``infos["env_id"]`` says whose they are. Observations are copies.

        Raises:
            NoAsyncCallError: fewer than ``batch_size`` are under way.
            multiprocessing.TimeoutError: not enough were ready in time; nothing is lost.
        """
        if batch_size is not None:
            at_least("batch_size", batch_size, 1)
        with self._one_thread:
            self._check_idle("recv")
            if self._session.under_way < (batch_size := self._session.batch_size(batch_size)):
                raise NoAsyncCallError(
                    f"recv() returns {batch_size} rows, but only {self._session.under_way} are under way: send() more",
                    "send",
                )
            return self._session.recv(timeout, batch_size)

    def call(self, name: str, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Call a method of every sub-environment, found through its wrappers, or read an attribute.

        Returns:
            What they returned, plain data only unless ``num_workers=0``.
        """
        self.call_async(name, *args, **kwargs)
        return self.call_wait()

    def call_async(self, name: str, /, *args: object, **kwargs: object) -> None:
        """Begin a call without waiting for it."""
        with self._one_thread:
            self._check_free("call_async")
            if name in RESERVED:
                raise ValueError(f"Trying to call function `{name}` with `call`, use `{name}` directly instead.")
            self._session.begin_call("call", (), name, args, kwargs)
            self._pending = "call"

    def call_wait(self, timeout: float | None = None) -> tuple[Any, ...]:
        """Wait for a call.

        Raises:
            NoAsyncCallError: there is none.
            multiprocessing.TimeoutError: it takes longer than ``timeout`` seconds.
        """
        with self._one_thread:
            self._end_pending("call", "call_wait")
            return self._session.end_call(timeout, "call_wait")

    def get_attr(self, name: str) -> tuple[Any, ...]:
        """An attribute of every sub-environment, found through its wrappers."""
        return self.call(name)

    def set_attr(self, name: str, values: Any) -> None:
        """Set an attribute of every sub-environment, on the wrapper that has it.

        Args:
            name: of the attribute.
            values: one for all, or a list or tuple with one for each.
        """
        with self._one_thread:
            self._check_free("set_attr")
            each = each_value(values, self.num_envs)
            self._session.begin_call("set_attr", (each,), name)
            self._session.end_call(None, "set_attr")

    def render(self) -> tuple[Any, ...]:
        """What every sub-environment's ``render`` returns."""
        return self.call("render")

    def close_extras(self, timeout: float | None = None, terminate: bool = False) -> None:
        """End the workers.

        Any thread and any signal handler may call it. A call in progress raises ``ClosedEnvironmentError``. If the
        signal handler has interrupted that call, the workers end when the call does.

        Args:
            timeout: seconds that workers may take to end by themselves, ``WorkerOptions.close_timeout_s`` by default.
            terminate: end them by force at once.

        Raises:
            PoolBusyError: The call of another thread has not ended within ``WorkerOptions.close_timeout_s``. That call
                closes the vector env when it ends.
        """
        if self._pending is not _IDLE:
            logger.warn(f"Calling `close` while waiting for a pending call to `{self._pending}` to complete.")
        self._one_thread.close(0.0 if terminate else timeout)

    def _check_free(self, name: str) -> None:
        self._check_idle(name)
        if self._session.under_way:
            raise AlreadyPendingCallError(
                f"Calling `{name}` while {self._session.under_way} sub-environments are under way: recv() them first.",
                "send",
            )

    def _check_idle(self, name: str) -> None:
        self._check_open()
        if self._pending is not _IDLE:
            raise AlreadyPendingCallError(
                f"Calling `{name}` while waiting for a pending call to `{self._pending}` to complete.", self._pending
            )

    def _end_pending(self, what: str, name: str) -> None:
        """Check that this is pending; whatever comes of it, it is not afterwards."""
        self._check_open()
        if self._pending != what:
            raise NoAsyncCallError(f"Calling `{name}` without any prior call to `{what}_async`.", what)
        self._pending = _IDLE

    def _check_open(self) -> None:
        if self.closed:
            raise ClosedEnvironmentError(self._refusal)

"""ParallelVectorEnv: the public class."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal, Self

from gymnasium import Env, Space, logger
from gymnasium.error import AlreadyPendingCallError, ClosedEnvironmentError, NoAsyncCallError
from gymnasium.vector import AutoresetMode, VectorEnv

from parenv.argument_checks import at_least
from parenv.crew.one_thread import OneThread
from parenv.options import Placing, WorkerOptions
from parenv.vector.arguments import as_env_ids, each_seed, each_value, without_mask
from parenv.vector.backend import VectorStatistics
from parenv.vector.beginning import begin
from parenv.vector.choice import CallerSteps
from parenv.vector.second_look import second_look
from parenv.vector.vector_plan import (
    ObservationMode,
    OnWorkerDeath,
    SpinUs,
    VectorArguments,
    VectorPlan,
    make_vector_plan,
)
from parenv.vector.vector_state import StepResults, VectorState

RESERVED = ("reset", "step", "close", "_setattr", "_check_spaces")
_IDLE = ""


class ParallelVectorEnv(VectorEnv[Any, Any, Any]):
    """Gymnasium's ``AsyncVectorEnv`` with many sub-environments per worker, with the same arguments and behaviour.

    The results equal those of ``SyncVectorEnv`` with the same seeds and actions. The methods :meth:`send` and
    :meth:`recv` step the sub-environments that are ready. A ``with`` block closes the vector env at its end.

    Args:
        env_fns: One factory for each sub-environment.
        shared_memory: Accepted without effect. Arrays of fixed size are in shared memory, other values are messages.
        copy: Whether returned observations are copies. With ``False`` they are arrays over the shared memory, which the
            next step overwrites.
        context: Accepted without effect, because all start methods mean the same here.
        daemon: Accepted without effect. Workers always end with this process, and may have child processes.
        worker: Must be ``None``.
        observation_mode: ``"same"``, ``"different"`` (equal shapes and dtypes), or a pair of batched and single space.
        autoreset_mode: When a sub-environment is reset after the end of an episode.
        max_concurrency: Limit on ``num_workers``.
        num_workers: Number of worker processes. With 0, this process steps all sub-environments. ``"auto"`` (default)
            chooses the number, and the share of this process: none for cheap steps, one per core for steps that
            compute, and up to one per sub-environment for steps that wait. A forked copy of the first sub-environment
            takes random actions for at most 50 ms. Limits, restarts and other options about processes need at least
            one worker. :attr:`choice` has the reason.
        batch_size: Number of rows that :meth:`recv` returns. Default: all. ``"auto"`` chooses by the measured time of a
            step, its spread, and the time of a wake-up. The policy is not measured: if it takes as long as the
            sub-environments, half of the rows are better.
        step_timeout_s: Limit for an env step or a call, in seconds. A worker that exceeds it is killed, and the error
            shows its stack. Default: ``WorkerOptions.step_timeout_s``. ``WorkerOptions.reset_timeout_s`` is the limit
            for resets. With ``num_workers=0``, neither these limits nor the ``timeout`` of a wait have an effect.
        on_worker_death: ``"raise"``: a dead worker closes the vector env. ``"restart"``: another process replaces the
            worker, as often as ``WorkerOptions.restart`` allows. The current episodes of its sub-environments are then
            truncated and flagged in ``infos["worker_restarted"]``. ``infos["ended_by"]`` has the reason.
        workers: Options of the workers, with their limits for start and close.
        placement: Machines of the workers. Default: this machine. On hosts, every step costs a network round trip, so
            prefer :class:`AsyncWorkerPool` across machines, or :meth:`send` to one half of the sub-environments while
            the other half steps. ``num_workers`` is required, and counts the workers on all hosts. The workers
            of a lost host wait up to ``WorkerOptions.start_timeout_s`` for another host.
        caller_steps: Whether this process steps a share of the sub-environments while workers step theirs. A crash of
            native code in that share ends this process, and a hang cannot be interrupted. The ``timeout`` of a wait
            takes effect after that share. ``"auto"``: if that is faster, and the module of the first sub-environment
            imports no native code that could crash. Default: ``"auto"`` with ``num_workers="auto"``, otherwise
            ``False``.
        spin_us: Microseconds for which this process and the workers poll before they sleep; 0: never. ``"auto"``: 100
            if there is a core for every worker and this process. Polling then stops while waits are longer, and takes
            at most a tenth of a core beyond the saved wake-ups. :meth:`statistics` reports the time.
        spaces: Observation and action space of one sub-environment, if the vector env must use these objects.
            ``"make"``: spaces of an environment that this process makes and closes. Default: spaces that workers
            describe. If they contain a ``Space`` class of the user, ``"make"``, unless that fails.
        strict_infos: Whether a value in an info that has no plain form is a :class:`~parenv.errors.NotDataError`. By
            default the value is left out, with one warning. With ``num_workers=0`` no value is left out.

    Attributes:
        num_workers: Number of worker processes; 0 if this process steps all sub-environments.
        num_caller_envs: Number of sub-environments that this process steps beside workers. They are the last ones.
        batch_size: Number of rows that :meth:`recv` returns by default.
        choice: Number of workers, share of this process and the reason for both. ``print(envs.choice)`` shows one line.
        measured_step_s: Measured seconds per env step; ``None`` without a measurement.

    Raises:
        ConfigurationError: An argument is invalid.
        RuntimeError: The spaces of the sub-environments are not compatible.

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
        num_workers: int | Literal["auto"] | None = "auto",
        batch_size: int | Literal["auto"] | None = None,
        step_timeout_s: float | None = None,
        on_worker_death: OnWorkerDeath = "raise",
        workers: WorkerOptions | None = None,
        placement: Placing = None,
        caller_steps: CallerSteps = None,
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
                class_name=type(self).__name__,
            )
        )
        self.env_fns, self.shared_memory, self.copy = env_fns, shared_memory, copy
        self.context, self.daemon, self.worker = context, daemon, worker
        self.observation_mode, self.max_concurrency = observation_mode, max_concurrency
        self.autoreset_mode = plan.job.autoreset.mode
        plan, session, self.choice, self.measured_step_s = begin(plan, copy)
        self._session, self.num_envs, self.batch_size = session, plan.num_envs, plan.batch_size
        self._pending, self._is_closed = _IDLE, False
        self._refusal = f"Trying to operate on `{type(self).__name__}`, after a call to `close()`."
        about = session.close, plan.job.options.close_timeout_s, ClosedEnvironmentError, self._refusal
        self._one_thread = OneThread(self, "the vector env", session.owner, session, *about)
        self._look = second_look(plan, session.backend)
        self._describe(plan, session)

    def _describe(self, plan: VectorPlan, session: VectorState) -> None:
        self.num_workers = len(plan.worker_shares)
        self.num_caller_envs = plan.caller_rows if plan.worker_shares else 0
        self.metadata, self.render_mode = session.metadata, session.render_mode
        of_all = session.spaces
        self.single_observation_space, self.observation_space = of_all.single_observation, of_all.observation
        self.single_action_space, self.action_space = of_all.single_action, of_all.action

    def __repr__(self) -> str:
        return f"{super().__repr__()[:-1]}, choice={str(self.choice)!r})"

    @property
    def closed(self) -> bool:  # type: ignore[override,unused-ignore]
        """Tell whether :meth:`close` was called, or a worker has ended without a restart."""
        return self._is_closed or self._session.backend.closed

    @closed.setter
    def closed(self, closed: bool) -> None:
        self._is_closed = closed

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def statistics(self) -> VectorStatistics:
        """Return the restarts, failures and lost episodes, and the time of polling so far."""
        return self._session.backend.statistics()

    def metrics(self) -> dict[str, float]:
        """Return the statistics so far as a flat dict for a logger, see :meth:`parenv.AsyncWorkerPool.metrics`."""
        return self.statistics().metrics()

    @property
    def envs(self) -> list[Any]:
        """The sub-environments, as in ``SyncVectorEnv``. This needs ``num_workers=0``."""
        if self.num_workers:
            raise AttributeError("envs needs num_workers=0, because workers have the sub-environments. Use call().")
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
            seed: ``None``, a list with one seed for each sub-environment, or an integer. With an integer, the seed of
                sub-environment ``i`` is ``seed + i``.
            options: Mapping for all sub-environments, or a list with one entry for each. ``reset_mask``, bool
                ``[num_envs]``, is not passed on.

        Returns:
            Observations of all sub-environments, and infos.
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
            NoAsyncCallError: No reset was begun.
            multiprocessing.TimeoutError: The reset takes longer than ``timeout`` seconds. Its results are dropped.
        """
        with self._one_thread:
            self._end_pending("reset", "reset_wait")
            return self._session.end_reset(timeout, "reset_wait")

    def step(self, actions: Any) -> StepResults:
        """Step all sub-environments.

        Args:
            actions: Batch of :attr:`action_space`, ``[num_envs, ...]``. Lists and tensors become arrays.

        Returns:
            Observations; rewards, float64 ``[num_envs]``; terminated and truncated, bool ``[num_envs]``; infos.
        """
        with self._one_thread:
            self._check_free("step_async")
            if (look := self._look) is not None:
                look.begin_step()
            self._session.begin_step(actions)
            results = self._session.end_step(None, "step_wait")
            if look is not None and look.end_step():
                self._look = None
            return results

    def step_async(self, actions: Any) -> None:
        """Begin a step without waiting for it.

        Raises:
            ResetNeeded: The mode is ``DISABLED`` and the episode of a sub-environment has ended.
        """
        with self._one_thread:
            self._check_free("step_async")
            self._session.begin_step(actions)
            self._pending = "step"

    def step_wait(self, timeout: float | None = None) -> StepResults:
        """Wait for a step.

        Raises:
            NoAsyncCallError: No step was begun.
            multiprocessing.TimeoutError: The step takes longer than ``timeout`` seconds. Its results are dropped, and
                the next step begins when this step is finished.
        """
        with self._one_thread:
            self._end_pending("step", "step_wait")
            return self._session.end_step(timeout, "step_wait")

    def send(self, actions: Any, env_ids: Any = None) -> None:
        """Begin a step of some sub-environments without waiting. :meth:`recv` returns the results.

        Args:
            actions: Batch of one action for each of these sub-environments, as in :meth:`step`.
            env_ids: Indices of the sub-environments, all of them without a step in progress. Default: all.

        Raises:
            ValueError: ``env_ids`` are not different indices, or the number of actions differs.
            AlreadyPendingCallError: A step of one of the sub-environments, or another call, is in progress.
            ResetNeeded: The mode is ``DISABLED`` and the episode of a sub-environment has ended.
        """
        with self._one_thread:
            self._check_idle("send")
            ids = as_env_ids(env_ids, self.num_envs)
            if busy := self._session.in_flight(ids):
                raise AlreadyPendingCallError(
                    f"env_ids {busy} cannot be sent while they step. Call recv() first.", "send"
                )
            self._session.send(actions, ids)

    def recv(self, timeout: float | None = None, batch_size: int | None = None) -> StepResults:
        """Return the results of the ``batch_size`` sub-environments that are ready first.

        With ``DISABLED``, no sub-environment can be reset while others step. If the episodes of all others have ended,
        this method therefore returns only the rows with a step in progress.

        Args:
            timeout: Limit of the wait, in seconds.
            batch_size: Number of rows. Default: ``batch_size`` of the constructor.

        Returns:
            Results as in :meth:`step`, with ``batch_size`` rows. ``infos["env_id"]`` contains the index of the
            sub-environment of each row. Observations are copies.

        Raises:
            NoAsyncCallError: Fewer than ``batch_size`` sub-environments have a step in progress.
            multiprocessing.TimeoutError: Too few were ready in time. A later call returns their results.
        """
        if batch_size is not None:
            at_least("batch_size", batch_size, 1)
        with self._one_thread:
            self._check_idle("recv")
            if self._session.under_way < (batch_size := self._session.batch_size(batch_size)):
                raise NoAsyncCallError(
                    f"recv() must return {batch_size} rows, but only {self._session.under_way} are requested. Call "
                    "send() first.",
                    "send",
                )
            return self._session.recv(timeout, batch_size)

    def call(self, name: str, /, *args: Any, **kwargs: Any) -> tuple[Any, ...]:
        """Call a method of every sub-environment, or read an attribute, also behind wrappers.

        Returns:
            One result from each sub-environment. Workers return only plain data.
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
            NoAsyncCallError: No call was begun.
            multiprocessing.TimeoutError: The call takes longer than ``timeout`` seconds.
        """
        with self._one_thread:
            self._end_pending("call", "call_wait")
            return self._session.end_call(timeout, "call_wait")

    def get_attr(self, name: str) -> tuple[Any, ...]:
        """Read an attribute of every sub-environment, also behind wrappers."""
        return self.call(name)

    def set_attr(self, name: str, values: Any) -> None:
        """Set an attribute of every sub-environment, on the wrapper that has it.

        If another process or environment replaces a sub-environment, the last value is set again before its first
        reset. Names of attributes for which that fails are in ``infos["lost_attributes"]``.

        Args:
            name: Name of the attribute.
            values: Value for all sub-environments, or a list or tuple with one value for each.
        """
        with self._one_thread:
            self._check_free("set_attr")
            each = each_value(values, self.num_envs)
            self._session.begin_call("set_attr", (each,), name)
            self._session.end_call(None, "set_attr")

    def render(self) -> tuple[Any, ...]:
        """Call ``render`` of every sub-environment."""
        return self.call("render")

    def close_extras(self, timeout: float | None = None, terminate: bool = False) -> None:
        """End the workers.

        Any thread and any signal handler may call it. A call in progress raises ``ClosedEnvironmentError``. If the
        signal handler has interrupted that call, the workers end when the call does.

        Args:
            timeout: Seconds after which workers are killed. Default: ``WorkerOptions.close_timeout_s``.
            terminate: Whether to kill the workers at once.

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
                f"`{name}` cannot be called while {self._session.under_way} sub-environments step. Call recv() first.",
                "send",
            )

    def _check_idle(self, name: str) -> None:
        self._check_open()
        if self._pending is not _IDLE:
            raise AlreadyPendingCallError(
                f"Calling `{name}` while waiting for a pending call to `{self._pending}` to complete.", self._pending
            )

    def _end_pending(self, what: str, name: str) -> None:
        """Check that a call is pending, and mark it as no longer pending."""
        self._check_open()
        if self._pending != what:
            raise NoAsyncCallError(f"Calling `{name}` without any prior call to `{what}_async`.", what)
        self._pending = _IDLE

    def _check_open(self) -> None:
        if self.closed:
            raise ClosedEnvironmentError(self._refusal)

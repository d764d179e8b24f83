"""prefetch: rollouts copied to a GPU while the learner computes on the one before."""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from itertools import islice
from operator import methodcaller
from typing import TYPE_CHECKING, Any

from parenv.argument_checks import at_least
from parenv.experience.rollout import Rollout
from parenv.learning.pinning import Pins

if TYPE_CHECKING:
    import torch


def prefetch(rollouts: Iterable[Rollout], device: Any, *, ahead: int = 1) -> Generator[Rollout, None, None]:
    """Rollouts as tensors on a device, copied to a GPU while the learner computes on the one before.

    With a CUDA device the pool's slots are pinned, each once, and the stream is asked for ``ahead`` rollouts more than
    the learner has, so they were begun by that many publishes fewer: the lag at the time of learning is up to
    ``ahead`` more than ``policy_lag`` says, and may so exceed ``max_policy_lag``; in sync mode too. What was asked for
    and not taken is dropped with the iterator. On any other device nothing runs ahead, and each is
    ``rollout.to(device)``.

    Args:
        rollouts: such as ``pool.rollouts()``; closed with the iterator.
        device: torch device.
        ahead: rollouts to have on the way, at least 1.

    Returns:
        The rollouts in the same order. Their tensors are ready for the stream that is current when they are yielded;
        the shared memory they came from is given back before.

    Raises:
        ConfigurationError: ``ahead`` is below 1. An error of the stream is raised after what came before it.
    """
    import torch

    at_least("ahead", ahead, 1, "; rollout.to(device) copies without it")
    target = torch.device(device)
    source = iter(rollouts)
    if target.type == "cuda":
        return _closing(_copied_ahead(source, target, ahead), source)
    return _closing(map(methodcaller("to", target), source), source)


def _closing(copies: Iterable[Rollout], source: Iterator[Rollout]) -> Generator[Rollout, None, None]:
    try:
        yield from copies
    finally:
        if isinstance(source, Generator):
            source.close()


def _copied_ahead(source: Iterator[Rollout], device: torch.device, ahead: int) -> Iterator[Rollout]:
    import torch

    side = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    # A rollout, which keeps the memory that is being read, its copy, and what tells when that is done.
    under_way: deque[tuple[Rollout, Rollout, torch.cuda.Event]] = deque()
    pins = Pins(torch.cuda.cudart())  # type: ignore[no-untyped-call]

    def begin(rollout: Rollout) -> tuple[Rollout, Rollout, torch.cuda.Event]:
        if isinstance(rollout, Rollout):
            pins.pin(rollout)
        with torch.cuda.stream(side):
            return rollout, rollout.to(device, non_blocking=True), side.record_event()

    def next_done() -> Rollout:
        _source, target, done = under_way.popleft()
        # The host waits, so that the source may go and every stream may read what is there.
        done.synchronize()
        for tensor in _tensors(target):
            # Else the allocator hands this memory to the next copy before the learner's kernels have read it.
            tensor.record_stream(torch.cuda.current_stream(device))
        return target

    def ask(count: int) -> None:
        # Without a loop variable, which would hold the last source while the learner computes.
        under_way.extend(map(begin, islice(source, count)))

    try:
        ask(ahead)
        while under_way:
            ask(1)
            yield next_done()
    except Exception:
        # What came before a failure of the stream is not lost with it.
        while under_way:
            yield next_done()
        raise
    finally:
        side.synchronize()
        pins.close()


def _tensors(part: Any) -> Iterator[torch.Tensor]:
    if hasattr(part, "record_stream"):
        yield part
    elif is_dataclass(part):
        yield from _tensors([getattr(part, field.name) for field in fields(part)])
    elif isinstance(part, Mapping):
        yield from _tensors(list(part.values()))
    elif isinstance(part, list | tuple):
        for item in part:
            yield from _tensors(item)

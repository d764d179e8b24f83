"""prefetch: copy rollouts to a GPU while the learner computes on the previous one."""

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
    from torch import Tensor


def prefetch(rollouts: Iterable[Rollout], device: Any, *, ahead: int = 1) -> Generator[Rollout[Tensor], None, None]:
    """Return rollouts as tensors on a device, copied to a GPU while the learner computes on the previous one.

    With a CUDA device, the pool's slots are pinned, each once. The iterator requests ``ahead`` rollouts more than the
    learner has. At the time of learning, the lag of a rollout is therefore up to ``ahead`` publishes more than its
    ``policy_lag``, and may exceed ``max_policy_lag``. This also applies in sync mode. Requested rollouts that are not
    taken are dropped with the iterator. On any other device, each rollout is ``rollout.to(device)`` when it is taken.

    Args:
        rollouts: Rollouts such as ``pool.rollouts()``. They are closed with the iterator.
        device: Torch device.
        ahead: Number of rollouts that are copied ahead, at least 1.

    Returns:
        Rollouts in the same order. Their tensors are ready for the CUDA stream that is current when they are yielded.
        Their shared memory is released before.

    Raises:
        ConfigurationError: ``ahead`` is below 1. An error of the stream is raised after all earlier rollouts.
    """
    import torch

    at_least("ahead", ahead, 1, ". Use rollout.to(device) to copy without prefetching.")
    target = torch.device(device)
    source = iter(rollouts)
    if target.type == "cuda":
        return _closing(_copied_ahead(source, target, ahead), source)
    return _closing(map(methodcaller("to", target), source), source)


def _closing(copies: Iterable[Rollout[Tensor]], source: Iterator[Rollout]) -> Generator[Rollout[Tensor], None, None]:
    try:
        yield from copies
    finally:
        if isinstance(source, Generator):
            source.close()


def _copied_ahead(source: Iterator[Rollout], device: torch.device, ahead: int) -> Iterator[Rollout[Tensor]]:
    import torch

    side = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
    # Each entry has a rollout, which keeps its memory while it is read, the copy, and an event for its end.
    under_way: deque[tuple[Rollout, Rollout[Tensor], torch.cuda.Event]] = deque()
    pins = Pins(torch.cuda.cudart())  # type: ignore[no-untyped-call]

    def begin(rollout: Rollout) -> tuple[Rollout, Rollout[Tensor], torch.cuda.Event]:
        if isinstance(rollout, Rollout):
            pins.pin(rollout)
        with torch.cuda.stream(side):
            return rollout, rollout.to(device, non_blocking=True), side.record_event()

    def next_done() -> Rollout[Tensor]:
        _source, target, done = under_way.popleft()
        # The host waits, so that the source can be released and every CUDA stream can read the copy.
        done.synchronize()
        for tensor in _tensors(target):
            # Otherwise the allocator may give this memory to the next copy before the learner's kernels have read it.
            tensor.record_stream(torch.cuda.current_stream(device))
        return target

    def ask(count: int) -> None:
        # A loop variable would keep the last source while the learner computes.
        under_way.extend(map(begin, islice(source, count)))

    try:
        ask(ahead)
        while under_way:
            ask(1)
            yield next_done()
    except Exception:
        # Rollouts that were copied before an error of the stream are yielded first.
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

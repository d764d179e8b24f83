"""Check the queue of an evaluation against a model that has all waiting episodes in one list."""

from __future__ import annotations

from collections import Counter

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)

from parenv.evaluation.queue import EpisodeQueue, QueuedEpisode

NUM_WORKERS = 2
tasks = st.sampled_from(["reach", "push", "pick", "place"])
chances = st.floats(0, 1, exclude_max=True)


class QueueAndList(RuleBasedStateMachine):
    """State machine that has the sub-environments of two workers play episodes, some of which are lost."""

    @initialize(tasks=st.lists(tasks, max_size=25), num_rows=st.integers(1, 3), retries=st.integers(0, 2))
    def begin(self, tasks: list[str], num_rows: int, retries: int) -> None:
        indices = Counter[str]()
        self.waiting = list[QueuedEpisode]()
        for task in tasks:
            self.waiting.append(QueuedEpisode(task, indices[task]))
            indices[task] += 1
        self.all, self.retries = list(self.waiting), retries
        self.losses, self.finished = Counter[QueuedEpisode](), list[QueuedEpisode]()
        self.fresh = list(dict.fromkeys(tasks))
        self.playing: dict[tuple[int, int], QueuedEpisode | None] = {
            (worker, row): None for worker in range(NUM_WORKERS) for row in range(num_rows)
        }
        self.task_of = dict[tuple[int, int], str]()
        self.queue = EpisodeQueue(self.waiting, num_rows, retries)

    def choices(self, place: tuple[int, int]) -> list[QueuedEpisode]:
        """Return the episodes that a sub-environment may get next. There are several if tasks are equally long."""
        firsts, lengths = dict[str, QueuedEpisode](), Counter[str]()
        for episode in self.waiting:
            if episode.row(len(self.playing) // NUM_WORKERS) == place[1]:
                firsts.setdefault(episode.task, episode)
                lengths[episode.task] += 1
        wanted = [task for task in self.fresh if task in firsts][:1]
        wanted = wanted or [task for task in firsts if task == self.task_of.get(place)]
        return [firsts[task] for task in wanted or firsts if wanted or lengths[task] == max(lengths.values())]

    @precondition(lambda self: not all(self.playing.values()))
    @rule(chance=chances)
    def take(self, chance: float) -> None:
        free = [place for place, episode in self.playing.items() if episode is None]
        self.take_at(free[int(chance * len(free))])

    def take_at(self, place: tuple[int, int]) -> None:
        choices, episode = self.choices(place), self.queue.next(place[1], self.task_of.get(place))
        assert episode in (choices or [None])
        if episode is not None:
            self.waiting.remove(episode)
            self.fresh = [task for task in self.fresh if task != episode.task]
            self.playing[place], self.task_of[place] = episode, episode.task

    def leave(self, chance: float) -> QueuedEpisode:
        busy = [place for place, episode in self.playing.items() if episode is not None]
        place = busy[int(chance * len(busy))]
        episode, self.playing[place] = self.playing[place], None
        assert episode is not None
        return episode

    @precondition(lambda self: any(self.playing.values()))
    @rule(chance=chances)
    def finish(self, chance: float) -> None:
        episode = self.leave(chance)
        self.queue.finished(episode)
        self.finished.append(episode)

    @precondition(lambda self: any(self.playing.values()))
    @rule(chance=chances, blamed=st.booleans())
    def lose(self, chance: float, blamed: bool) -> None:
        episode = self.leave(chance)
        self.losses[episode] += blamed
        is_repeated = self.losses[episode] <= self.retries
        assert self.queue.lost(episode, blamed) == is_repeated
        if is_repeated:
            self.waiting.insert(0, episode)
        else:
            self.finished.append(episode)

    @invariant()
    def every_episode_is_at_one_place(self) -> None:
        playing = [episode for episode in self.playing.values() if episode is not None]
        assert Counter(self.waiting + playing + self.finished) == Counter(self.all)
        assert +self.queue.unfinished == Counter(episode.task for episode in self.waiting + playing)
        assert self.queue.is_over == (not self.waiting and not playing)

    def teardown(self) -> None:
        while not self.queue.is_over:
            while any(self.playing.values()):
                self.finish(0.0)
            for place in self.playing:
                self.take_at(place)
            assert self.queue.is_over or any(self.playing.values())
        assert sorted(self.finished, key=repr) == sorted(self.all, key=repr)


def test_every_episode_is_played_until_it_finishes_or_is_lost_too_often() -> None:
    run_state_machine_as_test(QueueAndList, settings=settings(max_examples=60, stateful_step_count=50))

"""Check how ``parenv report`` reads, summarizes and draws traces that were written by hand."""

from __future__ import annotations

import itertools
import json
import math
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from parenv.bench import report
from parenv.bench.failure_report import failure_report
from parenv.bench.pictures import WIDTH, pictures, png
from parenv.bench.run_report import figures
from parenv.bench.timeline import UNRECORDED, Returns, find_traces, read_timeline
from parenv.cli.main import main
from parenv.crew.events import Back, Lost
from parenv.errors import ConfigurationError, ParenvError
from parenv.experience.episodes import EpisodeStatistics
from parenv.memory.layout import COMMIT_DTYPE
from parenv.pool.arrival import Arrival
from parenv.pool.events import Asked, Delivered, Published
from parenv.records.trace import TraceWriter

SINCE_S = 1000.0


def header(shares: list[int], **about: Any) -> list[dict[str, Any]]:
    facts = {
        "parenv trace": 1,
        "date": "2030-01-02 03:04:05",
        "env_steps": 0,
        "in processes": True,
        "mode": "async",
        "parallelism": "experience",
        "rollout_length": 10,
        "sub-environments of each worker": shares,
        "first env_id": 0,
    }
    return [
        {"name": "process_name", "ph": "M", "pid": 1, "args": {"name": "parenv"}},
        {"name": "parenv", "ph": "M", "pid": 1, "tid": 1, "ts": 1e6 * SINCE_S, "args": {**facts, **about}},
    ]


def piece(track: str, name: str, since: float, until: float, **args: Any) -> dict[str, Any]:
    tid = 1 if track == "driver" else 2 + int(track)
    ts, dur = 1e6 * (SINCE_S + since), 1e6 * (until - since)
    return {"name": name, "ph": "X", "pid": 1, "tid": tid, "ts": ts, "dur": dur, "args": args}


def instant(track: str, name: str, at: float, **args: Any) -> dict[str, Any]:
    return {**piece(track, name, at, at), "ph": "i", "s": "t", "args": args}


def run(worker: str, since: float, env_steps: int) -> list[dict[str, Any]]:
    """Return the events of a rollout: 0.2 s of waiting, 0.3 s of acting, 0.4 s in environments, 0.1 s of commit."""
    ends = [since + 0.2, since + 0.5, since + 0.9, since + 1.0]
    names = ("wait", "act", "env", "commit")
    return [
        piece(worker, name, began, ended, env_steps=env_steps)
        for name, began, ended in zip(names, [since, *ends], ends, strict=False)
    ]


def write(path: Path, events: list[dict[str, Any]], *, is_finished: bool = True) -> Path:
    lines = ",\n".join(map(json.dumps, events))
    path.write_text(f"[\n{lines}" + "\n]\n" * is_finished)
    return path


def two_workers(path: Path, **about: Any) -> Path:
    """Write a trace. Worker 0 collects three rollouts. Worker 1 collects one, is killed, and collects another one."""
    events = [
        *header([2, 1], **about),
        piece("driver", "learn", -1.0, 0.0),
        piece("driver", "wait", 0.0, 1.0),
        instant("driver", "rollout", 1.0, env_steps=20, policy_lag=0, returns=[1.0, 3.0], lengths=[4, 6]),
        *run("0", 0.0, 20),
        piece("driver", "publish", 1.25, 1.5, policy_version=1),
        piece("driver", "learn", 1.0, 1.5),
        piece("driver", "wait", 1.5, 2.0),
        instant("driver", "rollout", 2.0, env_steps=10, policy_lag=1),
        instant("driver", "evaluated", 2.0, policy_version=0, env_steps=1020, **{"mean return": 7.5}),
        instant("driver", "evaluated", 2.5, policy_version=1, **{"mean return": None}),
        *run("1", 0.0, 10),
        instant("1", "lost", 1.4, reason="worker 1 was killed by <SIGKILL>"),
        piece("1", "restart", 1.4, 2.0, generation=1),
        instant("driver", "rollout", 3.0, env_steps=20, policy_lag=2, returns=[None], lengths=[8]),
        *run("0", 1.0, 20),
        instant("driver", "rollout", 3.0, env_steps=20, policy_lag=1, returns=[5.0], lengths=[8]),
        *run("0", 2.0, 20),
        instant("0", "replaced", 2.5, reason="env_id 0 raised during env.step() and was replaced: ValueError: no"),
        instant("driver", "rollout", 3.0, env_steps=10, policy_lag=1),
        *run("1", 2.0, 10),
    ]
    return write(path, events)


class Page(HTMLParser):
    """HTML page, parsed into its tags with their attributes and the text between them."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, Any]]] = []
        self.text = ""
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attributes: Any) -> None:
        self.tags.append((tag, dict(attributes)))

    def handle_data(self, data: str) -> None:
        self.text += data

    @property
    def pictures(self) -> list[str]:
        return [attributes["alt"] for tag, attributes in self.tags if tag == "img"]


def test_a_trace_is_read_in_seconds_since_the_first_request_for_a_rollout(tmp_path: Path) -> None:
    timeline = read_timeline(two_workers(tmp_path / "trace.json", env_steps=1000))
    assert timeline.is_finished
    assert [track.name for track in timeline.tracks] == ["driver", "worker 0", "worker 1"]
    assert [track.env_steps for track in timeline.tracks] == [0, 60, 20]
    assert (timeline.total_env_steps, timeline.restarts) == (80, 1)
    assert timeline.seconds == pytest.approx(3.0)
    assert timeline.arrived_s == pytest.approx([1.0, 2.0, 3.0, 3.0, 3.0])
    assert timeline.policy_lag.tolist() == [0, 1, 2, 1, 1]
    evaluations = timeline.evaluations
    assert evaluations.seconds == pytest.approx([2.0, 2.5])
    np.testing.assert_array_equal(evaluations.env_steps, [1020, np.nan])
    np.testing.assert_array_equal(evaluations.values, [7.5, np.nan])
    episodes = timeline.episodes
    np.testing.assert_array_equal(episodes.values, [1.0, 3.0, np.nan, 5.0])
    assert timeline.lengths.tolist() == [4, 6, 8, 8]
    assert episodes.env_steps.tolist() == [1020, 1020, 1050, 1070]
    assert episodes.seconds == pytest.approx([1.0, 1.0, 3.0, 3.0])
    assert timeline.env_steps_at(2.5) == 1030
    assert timeline.lost_s == pytest.approx([1.4, 2.5])
    died, replaced = timeline.failures.failures()
    assert (died.worker, died.reasons, died.error) == (1, {"worker_died": 1}, "worker 1 was killed by <SIGKILL>")
    assert (replaced.worker, replaced.reasons) == (0, {"environment_error": 1})


def test_the_parts_add_up_to_the_time_and_publishing_is_not_learning(tmp_path: Path) -> None:
    timeline = read_timeline(two_workers(tmp_path / "trace.json"))
    driver, worker, killed = (track.fractions() for track in timeline.tracks)
    assert driver == pytest.approx({"learn": 0.125, "wait": 0.75, "publish": 0.125, UNRECORDED: 0.0})
    assert worker == pytest.approx({"wait": 0.2, "act": 0.3, "env": 0.4, "commit": 0.1, UNRECORDED: 0.0})
    assert killed["restart"] == pytest.approx(0.6 / 3)
    assert killed[UNRECORDED] == pytest.approx(0.4 / 3)
    assert sum(killed.values()) == pytest.approx(1.0)


def test_a_publish_after_the_last_rollout_is_not_subtracted_from_learning(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    write(
        path,
        [
            *header([1]),
            piece("driver", "wait", 0.0, 1.0),
            piece("driver", "learn", 1.0, 2.0),
            piece("driver", "wait", 2.0, 3.0),
            piece("driver", "publish", 3.0, 4.0),
        ],
    )
    fractions = read_timeline(path).driver.fractions()
    assert fractions == pytest.approx({"wait": 0.5, "learn": 0.25, "publish": 0.25, UNRECORDED: 0.0})


def test_the_running_mean_is_over_the_last_hundred_known_returns() -> None:
    returns = np.where(np.arange(250) % 7 == 3, np.nan, np.arange(250.0))
    none = np.zeros(250)
    expected = [np.nanmean(returns[max(0, i - 99) : i + 1]) for i in range(250)]
    assert Returns(returns, none, none).running_mean() == pytest.approx(expected)
    assert np.isnan(Returns(np.array([np.nan]), none[:1], none[:1]).running_mean()).all()


def test_a_truncated_trace_is_read_up_to_its_end(tmp_path: Path) -> None:
    whole = two_workers(tmp_path / "trace.json").read_text()
    about = whole.index("\n", whole.index("parenv trace"))
    torn, known = tmp_path / "torn.json", set()
    for end in range(about, len(whole) - 2, 7):
        torn.write_text(whole[:end])
        timeline = read_timeline(torn)
        assert not timeline.is_finished
        assert [0 <= sum(track.fractions().values()) <= 1 + 1e-9 for track in timeline.tracks] == [True] * 3
        known.add(timeline.total_env_steps)
    assert known == {0, 20, 30, 50, 70, 80}


@pytest.mark.more
def test_the_page_has_all_pictures_and_needs_no_other_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    two_workers(tmp_path / "trace.json", mode="sync")
    (tmp_path / "bench.json").write_text('{"not": "a trace"}')
    (tmp_path / "directory.json").mkdir()
    assert main(["report", str(tmp_path)]) == 0
    assert capsys.readouterr().out == f"{tmp_path / 'report.html'}\n"
    page = Page(tmp_path / "report.html")
    assert page.pictures == ["Return", "Return over time", "Throughput", "Policy lag"]
    sources = [attributes["src"] for tag, attributes in page.tags if tag == "img"]
    assert all(source.startswith("data:image/png;base64,iVBOR") for source in sources)
    assert {tag for tag, _ in page.tags} & {"script", "link", "iframe", "object"} == set()
    assert "not finished" not in page.text
    for words in (
        "Run of 2030-01-02 03:04:05 (trace.json)",
        "sync, experience parallelism, 2 workers, 3 sub-environments.",
        "env steps per second26.7",
        "Diamonds: mean returns of evaluations.",
        "ui.perfetto.dev shows when each worker did what. Open trace.json there.",
        "trace.json: 2 failures, no lost episodes",
        "worker 1 was killed by <SIGKILL>",
        "env_id 0 raised during env.step() and was replaced: ValueError: no",
    ):
        assert words in page.text


@pytest.mark.more
def test_a_directory_with_several_traces_has_one_page(tmp_path: Path) -> None:
    for name in ("a", "b"):
        two_workers(tmp_path / f"{name}.json")
    page = Page(report(tmp_path, tmp_path / "other.html"))
    assert [path.name for path in find_traces(tmp_path)] == ["a.json", "b.json"]
    assert page.pictures.count("Throughput") == 2
    assert not (tmp_path / "report.html").exists()


def test_a_trace_without_a_rollout_has_no_pictures(tmp_path: Path) -> None:
    path = write(tmp_path / "trace.json", header([1, 1]), is_finished=False)
    assert read_timeline(path).seconds == 0.0
    page = Page(report(path))
    assert page.pictures == []
    assert "There is no rollout in this trace." in page.text


def drawn(path: Path) -> list[str]:
    """Draw the pictures of a trace and return their titles."""
    timeline = read_timeline(path)
    found = pictures(timeline)
    assert all(png(draw, timeline).startswith("data:image/png;base64,iVBOR") for draw in found.values())
    return list(found)


def test_an_unfinished_trace_without_an_episode_has_no_picture_of_returns_and_a_warning(tmp_path: Path) -> None:
    events = [
        *header([1], **{"in processes": False}),
        piece("driver", "wait", 0.0, 1.0),
        instant("driver", "rollout", 1.0, env_steps=10, policy_lag=0),
        *run("0", 0.0, 10),
    ]
    path = write(tmp_path / "trace.json", events)
    path.write_text(path.read_text()[:-30])
    page = Page(report(path))
    assert page.pictures == ["Throughput", "Policy lag"]
    assert "No episode ended" in page.text
    assert "The trace is not finished" in page.text
    assert "no worker processes (num_workers=0)" in page.text


@pytest.mark.one_in(3)
@pytest.mark.parametrize("returns", [[None, None], [0.0], [-1e30, 1e30]])
def test_strange_returns_can_be_drawn(returns: list[Any], tmp_path: Path) -> None:
    rollout = instant("driver", "rollout", 1.0, env_steps=10, policy_lag=0, returns=returns, lengths=[5] * len(returns))
    events = [*header([1]), piece("driver", "wait", 0.0, 1.0), rollout, *run("0", 0.0, 10)]
    assert "Return" in drawn(write(tmp_path / "trace.json", events))


def test_a_single_rollout_can_be_drawn_without_its_worker(tmp_path: Path) -> None:
    rollout = instant("driver", "rollout", 1.0, env_steps=10, policy_lag=0)
    events = [*header([1]), piece("driver", "wait", 0.0, 1.0), rollout]
    assert "Throughput" in drawn(write(tmp_path / "trace.json", events))


def test_a_trace_that_begins_during_a_run_starts_at_its_first_request(tmp_path: Path) -> None:
    events = [*header([1]), piece("driver", "learn", -5.0, 0.0), piece("driver", "wait", 0.0, 0.5)]
    for since in (-4.0, -3.0, -2.0, -0.5):
        events += [instant("driver", "rollout", 0.5, env_steps=10, policy_lag=0), *run("0", since, 10)]
    timeline = read_timeline(write(tmp_path / "trace.json", events))
    assert timeline.workers[0].fractions() == pytest.approx(
        {"wait": 0, "act": 0, "env": 0.8, "commit": 0.2, "unrecorded": 0}
    )
    assert "Throughput" in drawn(tmp_path / "trace.json")


@pytest.mark.more
def test_every_worker_has_a_bar_and_its_env_steps(tmp_path: Path) -> None:
    events = [*header([1] * 40), piece("driver", "wait", 0.0, 1.0)]
    for worker in range(40):
        events += [instant("driver", "rollout", 1.0, env_steps=10, policy_lag=0), *run(str(worker), 0.0, 10)]
    page = Page(report(write(tmp_path / "trace.json", events)))
    assert "worker 3940.0 %30.0 %10.0 %20.0 %1010" in page.text
    bars = [i for i, (tag, attributes) in enumerate(page.tags) if attributes.get("class") == "bar"]
    assert len(bars) == 41
    shares = [attributes["style"].split(";")[0] for _, attributes in page.tags[bars[-1] + 1 : bars[-1] + 5]]
    assert shares == ["flex:0.4000", "flex:0.3000", "flex:0.1000", "flex:0.2000"]


def test_throughput_is_the_env_steps_that_arrive_in_a_time(tmp_path: Path) -> None:
    from matplotlib.figure import Figure

    events = [*header([1], mode="sync"), piece("driver", "wait", 0.0, 40.0)]
    for second in range(40):
        steps = 10 if second < 20 else 30
        events += [instant("driver", "rollout", second + 0.5, env_steps=steps, policy_lag=0), *run("0", second, steps)]
    panel = Figure().subplots()
    pictures(read_timeline(write(tmp_path / "trace.json", events)))["Throughput"](
        panel, read_timeline(tmp_path / "trace.json")
    )
    assert panel.patches[0].get_data().values.tolist() == pytest.approx([10.0] * 5 + [30.0] * 5)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "{path} cannot be read: No such file or directory"),
        ("", "{path} is not a trace of a run. Call pool.trace"),
        ('{"a": 1}', "{path} is not a trace of a run"),
        ('[\n{"name": "parenv", "ph": "M", "args": {"parenv trace": 99}}\n]\n', "must be a trace of format 1"),
        ('[\n{"name": "parenv", "ph": "M", "args": {"parenv trace": 1', "must be a trace of format 1"),
        ("[\n{}\nnothing\n{} parenv trace", "is not a trace"),
    ],
)
def test_a_file_that_is_not_a_trace_is_an_error_in_one_line(
    content: str | None, words: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "trace.json"
    if content is not None:
        path.write_text(content)
    assert main(["report", str(path)]) == 2
    printed = capsys.readouterr()
    assert words.format(path=path) in printed.err
    assert (printed.out, printed.err.count("\n"), printed.err[:15]) == ("", 1, "parenv report: ")


def test_a_damaged_trace_is_an_error_that_names_the_line(tmp_path: Path) -> None:
    path = two_workers(tmp_path / "trace.json")
    lines = path.read_text().splitlines(keepends=True)
    path.write_text("".join([*lines[:6], lines[6][:30] + "\n", *lines[7:]]))
    with pytest.raises(ConfigurationError, match=r"trace.json is damaged: line 7 is not an event. Remove it.$"):
        report(path)


def test_a_directory_without_a_trace_or_for_the_page_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"the directory .* has no trace. Call pool\.trace"):
        report(tmp_path)
    two_workers(tmp_path / "trace.json")
    with pytest.raises(ConfigurationError, match=r"it is a directory"):
        report(tmp_path, tmp_path)
    with pytest.raises(ConfigurationError, match=r"there is no directory .*nowhere"):
        report(tmp_path, tmp_path / "nowhere" / "report.html")


def test_a_full_disk_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ParenvError, match=r"/dev/full cannot be written: No space left on device"):
        report(write(tmp_path / "trace.json", header([1])), "/dev/full")


def test_without_matplotlib_the_error_names_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    two_workers(tmp_path / "trace.json")
    with pytest.raises(
        ConfigurationError,
        match=r"a plot needs matplotlib, which is not installed. Run: pip install matplotlib$",
    ):
        report(tmp_path)


NARROW_PX = 368
"""Width of a picture in a page on a phone with 400 px."""


def texts(figure: Any) -> Iterator[Any]:
    from matplotlib.text import Text

    return (text for text in figure.findobj(Text) if text.get_visible() and text.get_text().strip())


@pytest.mark.more
def test_pictures_for_phones_have_readable_text(tmp_path: Path) -> None:
    from matplotlib.figure import Figure

    timeline = read_timeline(two_workers(tmp_path / "trace.json"))
    for draw in pictures(timeline).values():
        figure = Figure(figsize=(WIDTH, 3.0), layout="constrained")
        draw(figure.subplots(), timeline)
        figure.draw_without_rendering()
        for text in texts(figure):
            assert text.get_fontsize() / 72 / WIDTH * NARROW_PX >= 8.5, text.get_text()


@pytest.mark.more
def test_a_page_is_as_wide_as_the_screen_and_its_tables_are_scrolled(tmp_path: Path) -> None:
    two_workers(tmp_path / "trace.json")
    tags = Page(report(tmp_path)).tags
    assert ("meta", {"name": "viewport", "content": "width=device-width, initial-scale=1"}) in tags
    assert [tags[i - 1] for i, (tag, _) in enumerate(tags) if tag == "table"] == [("div", {"class": "scrolled"})] * 2


def test_losses_without_a_restart_are_distinguished_from_restarts(tmp_path: Path) -> None:
    path = two_workers(tmp_path / "trace.json")
    lines = path.read_text().removesuffix("\n]\n")
    for second in (2.6, 2.7):
        lines += ",\n" + json.dumps(instant("1", "lost", second, reason="killed again"))
    path.write_text(lines + "\n]\n")
    assert figures(read_timeline(path))["workers restarted"] == "1"
    assert failure_report(path).splitlines() == [
        "trace.json: 4 failures, no lost episodes",
        "",
        "worker 1: 3 failures (3 worker_died), no lost episodes",
        "  last: killed again",
        "",
        "worker 0: 1 failure (1 environment_error), no lost episodes",
        "  last: env_id 0 raised during env.step() and was replaced: ValueError: no",
    ]


def arrived(began: float, **spent: float) -> Arrival:
    """Return the arrival of a rollout of worker 0 that began at ``began`` and whose parts took these seconds."""
    commits = np.zeros(1, COMMIT_DTYPE)
    for name, seconds in spent.items():
        commits[name] = seconds
    commits["began_s"], commits["ended_s"] = began, began + sum(spent.values()) - spent["waiting_s"] + 1e-5
    rollout: Any = SimpleNamespace(episodes=EpisodeStatistics.of([], [], [], []), policy_version=0, policy_lag=0)
    return Arrival(rollout, [0], [[0]], [12], None, [0.0], [{}], commits, [[]])


def pieces_written(path: Path) -> list[dict[str, Any]]:
    events = [event for event in json.loads(path.read_text()) if event["ph"] == "X" and event["tid"] == 2]
    return sorted(events, key=lambda event: event["ts"])


def test_each_event_begins_in_the_nanosecond_in_which_the_previous_one_ends(tmp_path: Path) -> None:
    writer = TraceWriter(tmp_path / "trace.json", 1, header([1])[1]["args"], "commit")
    random, ended = np.random.default_rng(0), 123456.7
    for _ in range(1000):
        waiting_s, acting_s, environment_s, learning_s = random.uniform(1e-6, 1e-4, 4)
        arrival = arrived(
            ended + waiting_s,
            waiting_s=waiting_s, acting_s=acting_s, environment_s=environment_s, learning_s=learning_s,
        )  # fmt: skip
        writer.hear(Delivered(arrival))
        ended = float(arrival.commits["ended_s"][0])
    writer.close()
    events = pieces_written(tmp_path / "trace.json")
    assert len(events) == 5000
    for one, following in itertools.pairwise(events):
        assert one["ts"] + one["dur"] == following["ts"]
        assert int(1000 * one["ts"]) + int(1000 * one["dur"]) == int(1000 * following["ts"])


def test_a_rollout_that_arrives_after_a_restart_keeps_its_time(tmp_path: Path) -> None:
    writer = TraceWriter(tmp_path / "trace.json", 1, header([1])[1]["args"], "commit")
    writer.hear(Lost(0, RuntimeError("died")))
    writer.hear(Back(0, 1))
    writer.hear(Delivered(arrived(1.0, waiting_s=0.5, acting_s=0.1, environment_s=0.1, learning_s=0.0)))
    writer.close()
    first, *_, restart = pieces_written(tmp_path / "trace.json")
    assert (first["name"], first["ts"], first["dur"], restart["name"]) == ("wait", 0.5e6, 0.5e6, "restart")


def test_a_trace_is_strict_json_even_if_a_return_is_not_a_number(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    episodes = EpisodeStatistics.of([1.0, math.nan, math.inf, -math.inf], [3, 4, 5, 6], [0.1] * 4, [0] * 4)
    commits = np.zeros(1, COMMIT_DTYPE)
    commits["acting_s"], commits["environment_s"], commits["ended_s"] = 0.25, 0.5, 1.0
    rollout: Any = SimpleNamespace(episodes=episodes, policy_version=3, policy_lag=2)
    replaced = [[[0, "step", 'ValueError: "quoted"\nin two lines']]]
    writer = TraceWriter(path, 1, header([1])[1]["args"], "commit")
    writer.hear(Asked())
    writer.hear(Delivered(Arrival(rollout, [0], [[0]], [12], None, [0.0], [{}], commits, replaced)))
    writer.hear(Published(4, 0.0))
    writer.hear(Lost(0, RuntimeError('it "died"')))
    writer.hear(Back(0, 1))
    writer.close()
    writer.close()

    def refuse(constant: str) -> None:
        raise AssertionError(constant)

    events = json.loads(path.read_text(), parse_constant=refuse)
    assert all(event["pid"] == 1 and event.get("tid", 1) >= 1 for event in events)
    timeline = read_timeline(path)
    assert (timeline.total_env_steps, timeline.policy_lag.tolist(), timeline.restarts) == (12, [2], 1)
    replaced, died = timeline.failures.failures()
    assert (replaced.env_id, replaced.doing, replaced.error) == (0, "step", 'ValueError: "quoted"\nin two lines')
    assert (died.env_id, died.error) == (None, 'it "died"')

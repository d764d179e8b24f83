"""Check which criterion stops a stream, and which values of options are refused."""

from __future__ import annotations

import math
from typing import Any

import pytest

from parenv.argument_checks import options_of
from parenv.errors import ConfigurationError
from parenv.options import GradientOptions, RayPlacement, RemotePlacement, Stop, WorkerOptions

NOTHING: dict[str, Any] = {"env_steps": 0, "episodes": 0, "mean_return": math.nan, "seconds": 0.0}


@pytest.mark.parametrize("name", NOTHING)
def test_a_criterion_holds_from_its_limit_on(name: str) -> None:
    stop = Stop(**{name: 10})
    assert stop.reason(**NOTHING) is None
    assert stop.reason(**{**NOTHING, name: 9}) is None
    assert stop.reason(**{**NOTHING, name: 10}) == name
    assert stop.reason(**{**NOTHING, name: 11}) == name


def test_stop_must_be_a_stop_object() -> None:
    with pytest.raises(ConfigurationError, match=r"^stop must be Stop\(\.\.\.\), got 1000$"):
        options_of("stop", 1000, Stop)
    assert options_of("stop", None, Stop) == Stop()


def test_the_first_criterion_that_holds_is_named() -> None:
    stop = Stop(env_steps=10, episodes=10, mean_return=10, seconds=10)
    assert stop.reason(env_steps=10, episodes=10, mean_return=10, seconds=10) == "env_steps"
    assert stop.reason(env_steps=9, episodes=10, mean_return=10, seconds=10) == "episodes"
    assert stop.reason(env_steps=9, episodes=9, mean_return=10, seconds=10) == "mean_return"
    assert stop.reason(env_steps=9, episodes=9, mean_return=9, seconds=10) == "seconds"


def test_without_criteria_a_stream_does_not_stop() -> None:
    assert Stop().reason(env_steps=1 << 60, episodes=1 << 60, mean_return=1e300, seconds=1e300) is None


def test_a_mean_return_may_be_negative_and_does_not_hold_before_it_is_known() -> None:
    assert Stop(mean_return=-200).reason(**NOTHING) is None
    assert Stop(mean_return=-200).reason(**{**NOTHING, "mean_return": -199.5}) == "mean_return"


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"env_steps": 0}, "Stop.env_steps must be positive, got 0"),
        ({"episodes": -1}, "Stop.episodes must be positive, got -1"),
        ({"seconds": 0.0}, "Stop.seconds must be positive, got 0.0"),
        ({"seconds": math.nan}, "Stop.seconds must be positive, got nan"),
        ({"env_steps": "1000"}, "Stop.env_steps must be positive, got '1000'"),
        ({"mean_return": "475"}, "Stop.mean_return must be a number, got '475'"),
        ({"evaluation_return": math.nan}, "Stop.evaluation_return must be a number, got nan"),
        ({"window": 0}, "Stop.window must be an integer of at least 1, got 0"),
    ],
)
def test_an_invalid_stop_is_refused(arguments: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigurationError, match=reason):
        Stop(**arguments)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"threads": 0}, "WorkerOptions.threads must be an integer of at least 1, got 0"),
        ({"start_timeout_s": 0}, "WorkerOptions.start_timeout_s must be positive seconds, got 0"),
        ({"close_timeout_s": -1.5}, "WorkerOptions.close_timeout_s must be positive seconds, got -1.5"),
        ({"setup_fn": 3}, "WorkerOptions.setup_fn must be callable, got 3"),
        ({"cleanup_fn": "f"}, "WorkerOptions.cleanup_fn must be callable, got 'f'"),
        ({"preload": "numpy"}, "WorkerOptions.preload must be a tuple of module names, got 'numpy'"),
        ({"step_threads": 2, "step_workers": 2}, "step_threads must be 1 with step_workers=2, got 2"),
        ({"start_method": "forkserver"}, "WorkerOptions.start_method must be one of 'fork', 'spawn', got 'forkserver'"),
        ({"device": ()}, r"WorkerOptions.device must be the name of a device or a tuple of names, got \(\)"),
        ({"device": ("cuda", 1)}, "WorkerOptions.device must be the name of a device or a tuple of names, got "),
        ({"preload": ["numpy"]}, "WorkerOptions.preload must be a tuple of module names, got "),
    ],
)
def test_invalid_worker_options_are_refused(arguments: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigurationError, match=reason):
        WorkerOptions(**arguments)


EVERY_INTERFACE = ["*", "0.0.0.0", "[::]", "[::0]", "[0:0:0:0:0:0:0:0]", "[::ffff:0.0.0.0]", "[::%eth0]"]


@pytest.mark.parametrize("host", EVERY_INTERFACE)
def test_listening_on_all_interfaces_needs_an_explicit_option(host: str) -> None:
    with pytest.raises(ConfigurationError, match="is reachable from every network"):
        RemotePlacement(f"tcp://{host}:5555", "driver.key", "hosts.pub")
    RemotePlacement(f"tcp://{host}:5555", "driver.key", "hosts.pub", any_interface=True)


@pytest.mark.parametrize(
    "host", ["0", "00", "0x0", "0X", "0.0", "0.0.0", "00.0.0.0", "0x0.0.0.0", "0.0.0.0.", "127.1", "2130706433"]
)
@pytest.mark.parametrize("any_interface", [False, True])
def test_numbers_that_a_resolver_would_read_as_another_address_are_refused(host: str, any_interface: bool) -> None:
    with pytest.raises(ConfigurationError, match="an address must be of the form tcp"):
        RemotePlacement(f"tcp://{host}:5555", "driver.key", "hosts.pub", any_interface=any_interface)


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "[::1]", "[fe80::1%eth0]", "eth0", "head-node", "3com.example", "10.example"]
)
@pytest.mark.parametrize("port", ["5555", "*"])
def test_one_address_or_name_is_accepted(host: str, port: str) -> None:
    RemotePlacement(f"tcp://{host}:{port}", "driver.key", "hosts.pub")


def test_options_are_immutable() -> None:
    for options, name in ((WorkerOptions(setup_fn=print), "threads"), (Stop(), "window")):
        with pytest.raises(AttributeError):
            setattr(options, name, 2)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (
            {"reduction": "median"},
            "GradientOptions.reduction must be one of 'mean', 'weighted_mean', 'sum', got",
        ),
        ({"on_nonfinite": "ignore"}, "GradientOptions.on_nonfinite must be one of 'raise', 'skip', got 'ignore'"),
        ({"num_arrivals": 0}, "GradientOptions.num_arrivals must be an integer of at least 1, got 0"),
        ({"num_arrivals": None}, "GradientOptions.num_arrivals must be an integer of at least 1, got None"),
        ({"batch_size": 2.5}, "GradientOptions.batch_size must be an integer of at least 1, got 2.5"),
        ({"max_norm": 0.0}, "GradientOptions.max_norm must be positive, got 0.0"),
        ({"worker_max_norm": math.nan}, "GradientOptions.worker_max_norm must be positive, got nan"),
    ],
)
def test_invalid_gradient_options_are_refused(arguments: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigurationError, match=reason):
        GradientOptions(**arguments)


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"num_workers": 0}, "RayPlacement.num_workers must be an integer of at least 1, got 0"),
        ({"workers_per_host": 1.5}, "RayPlacement.workers_per_host must be an integer of at least 1, got 1.5"),
        ({"resources": {"CPU": -1}}, "must map names to amounts of at least 0, got 'CPU': -1"),
        ({"resources": {"CPU": math.nan}}, "must map names to amounts of at least 0, got 'CPU': nan"),
        ({"resources": {"CPU": "1"}}, "must map names to amounts of at least 0, got 'CPU': '1'"),
        ({"resources": {"": 1}}, "must map names to amounts of at least 0, got '': 1"),
    ],
)
def test_an_invalid_ray_placement_is_refused(arguments: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigurationError, match=reason):
        RayPlacement(**{"num_workers": 1, **arguments})

"""Generated parts of pages, by name. Each is a table from one file of results, or a figure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from forms import about, by_case, by_system, cell, measured, read, table, values
from libraries import by_question

SPEEDS = {
    "cartpole 8": "8 CartPoles",
    "cartpole 64": "64 CartPoles",
    "halfcheetah 16": "16 HalfCheetahs",
    "pong 8": "8 Pongs",
    "sleeping 16": "16 envs that wait 2 ms",
    "sleeping 64": "64 envs that wait 2 ms",
}
REFERENCE, OTHERS = "SyncVectorEnv", ("AsyncVectorEnv", "SubprocVecEnv")
NAMES = {
    "limit": "upper bound",
    "nobody spins": "no spinning",
    "driver's processor": "processor time of the main process",
    "worker's processor": "processor time of a worker",
    "bare loops": "independent processes",
}
CPU = "all on the CPU"
ROLLOUTS = {
    "64 CartPoles with an MLP, 2 workers": "rollouts_cartpole",
    "8 Pongs from pixels with convolutions, 2 workers": "rollouts_pong",
    "64 environments that sleep 2 ms, 64 workers": "rollouts_sleeping",
}
SB3 = {
    "16 HalfCheetahs, collecting": "collecting, 16 HalfCheetah",
    "64 CartPoles, collecting": "collecting, 64 CartPole",
}
SB3_TO_475 = {
    "8 environments": "PPO to 475, 8 environments, as in the zoo, seconds",
    "64 environments": "PPO to 475, 64 environments, seconds",
}
SHORT = "{cpu}, {cores} cores, {date}"
THOUSANDS = cell("{:,.0f}", "median", lambda rate: rate / 1000)


def named(curve: str) -> str:
    """Return the name of a system or curve in the tables."""
    for old, new in NAMES.items():
        curve = curve.replace(old, new)
    return curve


def flat(name: str) -> dict[str, Any]:
    """Return results by case, from results by condition and case."""
    return {f"{case}, {condition}": one for condition, cases in read(name).items() for case, one in cases.items()}


def systems(name: str, write: Callable[[Any], str], title: str = "") -> str:
    """Return a table with a row for each system, and a column for each case."""
    return by_system(name, {title or case: found for case, found in read(name).items()}, write)


def cores(case: str) -> str:
    """Return the env steps per second by system and number of workers."""
    found = {int(key.split("-")[1]): one for key, one in read("peers_cores").items() if key.startswith(f"{case}-")}
    columns = {
        f"{workers} worker{'s' if workers > 1 else ''}": {named(name): one for name, one in rates.items()}
        for workers, rates in sorted(found.items())
    }
    return by_system("peers_cores", columns, THOUSANDS, "1,000 env steps/s")


def growth(name: str, title: str) -> str:
    """Return the microseconds per unit, with a column for each size."""
    curves = read("scaling")[name]
    sizes = next(iter(curves.values()))
    columns = {f"{float(size):,g}": {named(curve): found[size] for curve, found in curves.items()} for size in sizes}
    return by_system("scaling", columns, cell("{}", "median", lambda unit: about(unit, 3)), title)


def many_workers() -> str:
    """Return the share of the rate of independent processes, by number of workers."""
    found = read("scaling")["workers"]
    limit = found["env step of a worker, bare loops"]
    shares = {
        mode: {n: limit[n]["median"] / found[f"env step of a worker, {mode}"][n]["median"] for n in limit}
        for mode in ("async", "sync")
    }
    return by_case("scaling", shares, {f"{n} worker{'s' if n != '1' else ''}": cell("{:.2f}", n) for n in limit})


def accelerated(cases: Mapping[str, str], columns: Mapping[str, str]) -> str:
    """Return ratios to ``accelerate`` of Stable-Baselines3, by case and system."""
    found = {title: read("sb3_accelerate")[case] for title, case in cases.items()}
    return by_case("sb3_accelerate", found, {
        title: cell("{:.2f}", name, "ratio_to_accelerate", lambda ratio: 1 / ratio) for title, name in columns.items()
    })  # fmt: skip


def accelerated_returns() -> str:
    """Return the mean returns of Stable-Baselines3 at the end of training, with and without ``accelerate``."""
    begin = "mean return at the end: "
    found = {case.removeprefix(begin): one for case, one in read("sb3_accelerate").items() if case.startswith(begin)}
    kinds = ("DummyVecEnv", "accelerate", "accelerate async")
    return by_case("sb3_accelerate", found, {k: cell("{0[mean]:.0f} ± {0[deviation]:.0f}", k) for k in kinds})


def ratios(condition: str) -> dict[str, dict[str, float]]:
    """Return the env steps per second as a multiple of ``SyncVectorEnv``, by case and system."""
    return {case: read("choice")[condition][case]["ratio to SyncVectorEnv"] for case in SPEEDS}


def speeds() -> str:
    """Return the speed of vector envs without options. The best one for Python environments is bold."""

    def multiple(system: str) -> Callable[[Any], str]:
        def write(one: Any) -> str:
            found = one["ratio to SyncVectorEnv"]
            text = cell("{:.2f}" if found.get(system, 1.0) < 0.995 else "{:.1f}", system)(found)
            best = max(found[name] for name in ("parenv", REFERENCE, *OTHERS))
            return f"**{text}**" if found.get(system) == best else text

        return write

    rate = f"{REFERENCE}, env steps/s"
    found = {title: read("choice")["free cores"][case] for case, title in SPEEDS.items()}
    columns = {name: multiple(name) for name in ("parenv", *OTHERS)} | {"EnvPool, own C++ envs": multiple("EnvPool")}
    return by_case("choice", found, {rate: cell("{:,.0f}", rate), **columns})


def collecting() -> str:
    """Return the rates of rollouts with a policy, and of Stable-Baselines3 with ``accelerate``."""
    rollouts, sb3 = read("peers_rollouts"), read("sb3_accelerate")["collecting, 16 HalfCheetah"]
    found = {
        "64 CartPoles with an MLP": [
            rollouts[name] for name in ("parenv, sync", "CleanRL's loop, AsyncVectorEnv", "SB3 PPO, SubprocVecEnv",
                                        "CleanRL's loop, SyncVectorEnv")],
        "16 HalfCheetahs, PPO of Stable-Baselines3": [
            sb3.get(name) for name in ("accelerate", "AsyncVectorEnv", "SubprocVecEnv", "DummyVecEnv")],
    }  # fmt: skip
    rows = []
    for title, rates in found.items():
        texts = [cell("{:,.0f}", "median")(one) for one in rates]
        best = max(rates, key=lambda one: one["median"] if one else 0.0)
        rows.append([title, *(f"**{text}**" if one is best else text for text, one in zip(texts, rates, strict=True))])
    sources = "; ".join(measured(name, SHORT) for name in ("peers_rollouts", "sb3_accelerate"))
    return f"\n*{sources}*\n" + table(["env steps/s", "parenv", *OTHERS, "one process"], rows)


def leased() -> str:
    """Return figures of sessions by the pool that lends the environments."""
    found = read("sessions")
    pools = {name: {case: found[case].get(name) for case in found} for name in (*found["rates"], "ParallelVectorEnv")}
    return by_case("sessions", pools, {
        "env steps/s": cell("{:,.0f}", "rates", "median"),
        "time of a step": cell("{} µs", "step", "median", about),
        "processor time of the main process": cell("{} µs", "processor", "median", about),
        "sessions that failed without a fault": cell("{}", "faults", "failed without a fault"),
        "environments left": cell("{0[environments left]} of {0[environments at the start]}", "faults"),
        "processes left": cell("{0[processes left]} of {0[processes before]}", "killed"),
    })  # fmt: skip


# fmt: off
PARTS: dict[str, Callable[[], str]] = {
    "speeds": speeds,
    "questions": by_question,
    "collecting": collecting,
    "driver": lambda: cell("{0[driver_us_per_rollout_back_to_back]:.2f} to {0[driver_us_per_rollout]:.2f} ms")(
        {name: us / 1000 for name, us in read("driver").items()}),
    "replaced": lambda: cell("{:.2f} s", "until another one steps, s", "median")(read("faults")),
    "machine of cores": lambda: measured("peers_cores", SHORT),
    "machine of choice": lambda: measured("choice", SHORT),
    "peers_stepping": lambda: systems("peers_stepping", cell("{:.2f}", "ratio_to_limit")),
    "peers_rollouts": lambda: by_system("peers_rollouts", {"share of the upper bound": read("peers_rollouts")},
                                        cell("{:.2f}", "ratio_to_limit")),
    "peers_sleeping": lambda: systems("peers_sleeping", cell("{:.2f}", "ratio_to_limit"), "share of the upper bound"),
    "peers_startup": lambda: systems("peers_startup", cell("{} s", "seconds", about), "time to the first observation"),
    "peers_weights": lambda: systems("peers_weights", cell("{} ms", "median", about)),
    "peers_reduction": lambda: systems("peers_reduction", cell("{} ms", "median", about)),
    "peers_to_475": lambda: by_case("peers_to_475", read("peers_to_475")["runs"], {
        "time": cell("{:.3g} s", "median_seconds"), "env steps": cell("{:,.0f}", "median_env_steps")}),
    "cores cartpole": lambda: cores("cartpole"),
    "cores halfcheetah": lambda: cores("halfcheetah"),
    "cores rollouts": lambda: cores("rollouts"),
    "gpu": lambda: by_case("gpu", read("gpu"), {
        name: cell("{0[ratio_to_all on the CPU]:.2f} ({0[gpu_utilisation_percent]:.0f} %)", name)
        for name in next(iter(read("gpu").values())) if name != CPU}),
    "batches_gpu": lambda: by_case("batches_gpu", read("batches_gpu"), {"1,000 env steps/s": THOUSANDS}),
    "choice": lambda: by_case("choice", flat("choice"), {
        "chosen": cell("{}", "chosen", lambda text: text.partition(", because")[0]),
        "starts": cell("{0[0]} of {0[1]}", "starts", lambda one: (max(one.values()), sum(one.values()))),
        "share of the best setting": cell("{:.2f}", "share of the best setting"),
        **{title: cell("{:.2f}", "ratio to SyncVectorEnv", name) for title, name in {
            "default": "parenv", REFERENCE: REFERENCE, OTHERS[0]: OTHERS[0]}.items()}}),
    "pinning": lambda: by_case("pinning", flat("pinning"), {
        rule: cell("{:.2f}", rule, "ratio to all cores") for rule in ("one core each", "the cores of one NUMA node")}),
    "rollouts": lambda: by_case("rollouts_cartpole", {
        case: (found := read(name)).get("convolutions", found) for case, name in ROLLOUTS.items()},
        {mode: cell("{:.2f}", mode, "ratio_to_ideal") for mode in ("async", "sync")}),
    "main process": lambda: values("driver", ["processor time of the main process per rollout"], {
        "rare rollouts, which find cold caches": [cell("{:.0f} µs", "driver_us_per_rollout")],
        "rollouts one after the other": [cell("{:.0f} µs", "driver_us_per_rollout_back_to_back")]}),
    "startup": lambda: values("startup", ["time or memory"], {
        "8 workers, if the fork server runs already": [
            cell("{:.2f} s", "seconds_to_8_workers_with_a_running_fork_server")],
        "first pool of a process, beyond `import torch`": [cell("{:.2f} s", "first_pool_beyond_import_torch")],
        "memory of each further worker, with torch": [cell("{:.0f} MB (PSS)", "pss_mb_per_further_worker")]}),
    "startup_many": lambda: by_case("startup_many", read("startup_many"), {
        "start": cell("{:.1f} s", "seconds"), "memory (PSS)": cell("{:,.0f} MB", "pss_mb")}),
    "leased": leased,
    "leased, waiting": lambda: by_case("sessions", read("sessions")["many"], {
        name: cell("{:.2f}", f"{name}, 2 processes", "ratio_to_ideal") for name in ("threads", "coroutines")}),
    "leased, reset ahead": lambda: by_case("sessions", read("sessions")["ahead"], {
        "env steps/s": cell("{:,.0f}", "median"), "ratio": cell("{:.2f}", "ratio_to_reset_ahead=0")}),
    "interpreters": lambda: by_case("interpreters", {
        case: one for case, one in read("interpreters").items() if case != "start_s"},
        {"time per step, relative to an ordinary worker": cell("{:.2f}", "seconds per step, ratio")}),
    "batches": lambda: by_case("batches", read("batches"), {
        title: cell("{:.2f}", lambda one, loop=loop: one["pool"]["median"] / one[loop]["median"]) for title, loop in {
            "share of a loop that only steps": "bare loop",
            "share of a loop that also stores transitions": "bare loop, keeping"}.items()}),
    "accelerated": lambda: accelerated(SB3, {f"times as fast as with a {name}": name for name in (
        "DummyVecEnv", "SubprocVecEnv")}),
    "accelerated to 475": lambda: accelerated(SB3_TO_475, {"time, relative to a `DummyVecEnv`": "DummyVecEnv"}),
    "accelerated returns": accelerated_returns,
    "gradients": lambda: values("gradients", ["value"], {
        "samples per second with 2 workers, relative to one worker": [
            cell("{:.2f}", "samples per second by number of workers", "2", "ratio_to_1")],
        "processor time of the main process, share of a round": [
            cell("{:.1f} %", "driver's processor time over the time of a round", "2", lambda share: 100 * share)]}),
    "faults": lambda: values("faults", ["median", "worst"], {
        title: [cell(form, name, which) for which in ("median", "worst")] for title, form, name in (
            ("a SIGKILL is noticed", "{:.0f} ms", "until noticed, ms"),
            ("the replacement takes its first step", "{:.2f} s", "until another one steps, s"),
            *((f"a hung step ends, relative to its limit of {limit} s", "{:.2f}", f"hung, over a limit of {limit} s")
              for limit in ("0.5", "1", "2")))}),
    "nemesis": lambda: by_case("nemesis", read("nemesis"), {
        "transitions": cell("{:,}", "transitions"),
        **{kind: cell("{}", kind) for kind in ("deaths", "lost", "duplicated", "torn")},
        "left behind": cell("{}", "residue", len),
        "recovery, median": cell("{:.2f} s", "seconds_to_recover", "median"),
        "worst": cell("{:.2f} s", "seconds_to_recover", "worst"),
        "throughput": cell("{:.2f}", "throughput_ratio")}),
    "scaling": many_workers,
    "scaling workers": lambda: growth("workers", "workers whose environments sleep 2 ms, µs"),
    "scaling environments": lambda: growth("environments", "CartPoles on 2 workers, µs"),
    "earlier": lambda: table(["", "result", "measured"], [
        [one["name"], one["result"], one["measured"]] for one in read("earlier")]),
}
# fmt: on

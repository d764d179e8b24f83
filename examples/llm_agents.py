"""Run agents that use a tool: each episode is a coroutine that borrows an environment of a SessionPool.

The agents answer questions with a sandboxed calculator. A scripted function replaces the language model. One question
hangs the calculator and another one kills its process. The other sessions do not notice.

    python examples/llm_agents.py --num-sessions 64

prints how the sessions ended, and then borrows all environments of the pool at once.
"""

from __future__ import annotations

import argparse
import ast
import asyncio
import contextlib
import logging
import operator
import os
import random
import signal
import string
import time
from collections import Counter
from typing import Any

import gymnasium as gym

from parenv import SessionPool, WorkerOptions
from parenv.errors import SessionLostError

HANGS, KILLS = "9 ** 9 ** 9", "allocate(10 ** 12)"
TEXT = gym.spaces.Text(1000, charset=string.printable)


def allocate(size: int) -> int:
    """Stand for code that needs too much memory: the system kills the process."""
    os.kill(os.getpid(), signal.SIGKILL)
    return size


OPERATORS = {ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul, ast.Pow: operator.pow}
FUNCTIONS = {"abs": abs, "allocate": allocate}


def evaluate(node: ast.AST) -> Any:
    """Evaluate an expression of integers that a model has written. All other code is refused."""
    match node:
        case ast.Expression(body):
            return evaluate(body)
        case ast.Constant(int() as value):
            return value
        case ast.BinOp(left, operation, right) if type(operation) in OPERATORS:
            return OPERATORS[type(operation)](evaluate(left), evaluate(right))
        case ast.Call(ast.Name(name), arguments, []) if name in FUNCTIONS:
            return FUNCTIONS[name](*map(evaluate, arguments))
    raise ValueError(f"{type(node).__name__} is not allowed")


class Calculator(gym.Env[str, str]):
    """Question in text. Actions are ``"python EXPRESSION"``, which uses the tool, and ``"answer NUMBER"``."""

    observation_space = action_space = TEXT

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[str, dict[str, Any]]:
        super().reset(seed=seed)
        self.expression, self.answer, self.tool_calls = options["expression"], "", 0
        return f"What is {self.expression}?", {}

    def step(self, action: str) -> tuple[str, float, bool, bool, dict[str, Any]]:
        verb, _, text = action.partition(" ")
        if verb == "answer":
            self.answer = text
            return "", 0.0, True, False, {}
        self.tool_calls += 1
        try:
            result = str(evaluate(ast.parse(text, mode="eval")))
        except (SyntaxError, ValueError) as error:
            result = f"error: {error}"  # The model reads its mistake.
        return result, 0.0, False, self.tool_calls == 8, {}

    def grade(self) -> bool:
        """Return whether the answer is right. The policy cannot see this."""
        return self.answer == str(evaluate(ast.parse(self.expression, mode="eval")))


async def llm(observation: str, latency_s: float) -> str:
    """Stand for a request to a model server."""
    await asyncio.sleep(latency_s * random.uniform(0.5, 1.5))
    question = observation.removeprefix("What is ")
    return f"answer {observation}" if question == observation else f"python {question.removesuffix('?')}"


async def episode(pool: SessionPool, expression: str, args: argparse.Namespace) -> tuple[str, str]:
    """Run a session; return how it has ended, and details."""
    try:
        async with pool.session(expression, options={"expression": expression}, lease_s=args.lease_s) as env:
            observation, _ = await env.reset()
            over = False
            while not over:
                observation, _, terminated, truncated, _ = await env.step(await llm(observation, args.latency_s))
                over = terminated or truncated
            is_right = await env.call("grade")
    except SessionLostError as lost:
        return lost.reason, str(lost)  # The pool replaces the environment. Leave the episode out, or try it again.
    return "right" if is_right else "wrong", ""


async def run(args: argparse.Namespace) -> tuple[Counter[str], int]:
    rng = random.Random(args.seed)
    tasks = [f"{rng.randint(2, 99)} * {rng.randint(2, 99)} + {number}" for number in range(args.num_sessions)]
    tasks[args.num_sessions // 3], tasks[args.num_sessions // 2] = HANGS, KILLS
    workers = WorkerOptions(step_timeout_s=args.step_timeout_s)
    async with SessionPool(Calculator, num_envs=args.num_envs, seed=args.seed, workers=workers) as pool:
        began = time.perf_counter()
        outcomes = await asyncio.gather(*(episode(pool, one, args) for one in tasks))
        print(f"{len(tasks)} sessions in {time.perf_counter() - began:.1f} s with {args.num_envs} environments")
        counts = Counter(end for end, _ in outcomes)
        for end, count in counts.most_common():
            details = next(text for other, text in outcomes if other == end).partition("\n")[0]
            print(f"{count:>4} {end}" + (f": {details}" if details else ""))
        async with contextlib.AsyncExitStack() as stack:
            borrowed = [await stack.enter_async_context(pool.session()) for _ in range(args.num_envs)]
            size = len({env.env_id for env in borrowed})
            print(f"{size} environments are borrowed at once, {pool.statistics().worker_restarts} have a new process")
    return counts, size


def main(argv: list[str] | None = None) -> tuple[Counter[str], int]:
    """Return the number of sessions by their end, and the number of environments afterwards."""
    about = (__doc__ or "").split("\n\n")[0]
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    parser.add_argument("--num-sessions", type=int, default=64, help="Number of sessions, at least 4")
    parser.add_argument("--num-envs", type=int, default=8, help="Number of environments, each in its own process")
    parser.add_argument("--latency-s", type=float, default=0.1, help="Mean seconds that the model needs for an action")
    parser.add_argument("--step-timeout-s", type=float, default=2.0, help="Seconds after which a step has hung")
    parser.add_argument("--lease-s", type=float, default=60.0, help="Seconds after which a session is over")
    parser.add_argument("--seed", type=int, default=1, help="Seed of the questions and of the environments")
    return asyncio.run(run(parser.parse_args(argv)))


if __name__ == "__main__":
    logging.getLogger("parenv").setLevel(logging.ERROR)  # Each lost session is a warning of this logger.
    main()

"""Verdicts on programs, from a pool at the best level of isolation that this machine has."""

import asyncio

from rft.code.judge import verify
from rft.code.sandbox import Pool


def run(job, **options):
    """What `job(pool)` gives, with a pool of its own."""

    async def inner():
        async with Pool(slots=3, allow_unsafe=True, **options) as pool:
            return await job(pool)

    return asyncio.run(asyncio.wait_for(inner(), 300))


def verdicts(program, tests, **options):
    return run(lambda pool: verify(pool, program, tests, **options))


def together(jobs):
    """Verdicts by name, from one pool for all: arguments and options of `verify` by name."""

    async def job(pool):
        turns = asyncio.Semaphore(pool.slots)

        async def one(arguments, options):
            async with turns:
                return await verify(pool, *arguments, **options)

        return await asyncio.gather(*(one(*each) for each in jobs.values()))

    return dict(zip(jobs, run(job), strict=True))

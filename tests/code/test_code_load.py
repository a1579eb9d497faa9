"""128 clients at once: each program prints and returns a nonce of its own, and each client gets its own verdict.

RFT_LOAD_SECONDS=60 runs it for that long; a few seconds otherwise.
"""

import asyncio
import os
import secrets
import time

import served

from rft.code_server.client import Client

CLIENTS = 128
SECONDS = float(os.environ.get("RFT_LOAD_SECONDS", "4"))


async def clients(url: str) -> list[int]:
    """How many answers each client has had; fails at the first that is not its own."""
    end = time.monotonic() + SECONDS

    async def one(number: int, client: Client) -> int:
        count = 0
        while count == 0 or time.monotonic() < end:
            nonce, other = secrets.token_hex(8), secrets.token_hex(8)
            program = f"print('{nonce}')\ndef f(x):\n    print('{nonce}')\n    return x + '{nonce}'"
            right = [f"assert f('a') == 'a{nonce}'", f"value = f('b')\nassert value == 'b{nonce}'"]
            tests = [*right, f"assert f('c') == 'c{nonce}'"][: 2 + number % 2]
            place = number % 3  # which test is the wrong one tells the answers apart
            tests.insert(place, f"assert f('a') == 'a{other}'")
            answer = await client.test_program(program, tests, max_execution_time=5.0)
            wanted = [int(index != place) for index in range(len(tests))]
            assert answer.results == wanted, (number, count, answer)
            output = f"{nonce} {number}"
            if count % 8 == 0:
                answer = await client.test_program_stdio(
                    f"print('{nonce}', input())",
                    [{"input": str(number), "output": output}, {"input": "x", "output": output}],
                )
                assert answer.results == [1, 0], (number, count, answer)
            count += 1
        return count

    async with Client(url) as client:
        return await asyncio.gather(*(one(number, client) for number in range(CLIENTS)))


def test_no_answer_is_lost_doubled_or_mixed_up(server):
    counts = asyncio.run(clients(server.url))
    assert len(counts) == CLIENTS
    print(f"{sum(counts)} programs of {CLIENTS} clients in about {SECONDS:g} s, {min(counts)} to {max(counts)} each")
    assert server.honest() == (200, served.HONEST_RESULTS)
    server.nothing_left()

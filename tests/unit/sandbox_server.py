"""A server that has programs run and waits to be killed: `python sandbox_server.py LEVEL` prints their process ids."""

import asyncio
import sys

from sandbox_claims import INSIDE, LIMITS, ROLE

from rft.code.sandbox import Pool

DETACH = "import ctypes\nctypes.CDLL(None).prctl(1, 0, 0, 0, 0)\n"  # PR_SET_PDEATHSIG: would outlive its parent


async def main() -> None:
    async with Pool(level=sys.argv[1], limits=LIMITS, inside=INSIDE) as pool:
        for source in ("while True: pass", "import time\ntime.sleep(999)", ""):
            sandbox = await pool.acquire(ROLE)
            await sandbox.send((DETACH + source).encode())
        await asyncio.sleep(0.3)
        print(*(sandbox.process.pid for sandbox in pool._all), flush=True)
        await asyncio.sleep(999)


asyncio.run(main())

"""The Python tool of an agent: run code, give back what it printed."""

from rft.code.sandbox import Pool
from rft.code.script import run_script
from rft.code.solution import Failed, Solution


async def execute(pool: Pool, code: str, timeout: float = 5.0) -> dict[str, str | bool]:
    """Run code as a script in a sandbox of its own: {"output": printed, "error": traceback or cause, "success"}.

    `timeout` is in CPU seconds of the program. Nothing outlives the call: each begins with a fresh interpreter.
    Raises IsolationError where no sandbox can be started.
    """
    solution = Solution(pool, code, timeout, module="__main__")
    try:
        output, error = await run_script(solution)
    except Failed as failed:
        output = bytes(solution.sandbox.output) if solution.sandbox else b""
        error = f"{failed.cause}: {failed.note}"
    finally:
        await solution.close()
    said = error.encode("utf-8", "replace").decode()
    return {"output": output.decode("utf-8", "replace"), "error": said, "success": not error}

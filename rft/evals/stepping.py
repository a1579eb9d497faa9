"""vLLM's engine of this process for coroutines: they run in a thread of their own, the engine is stepped where it is.

An engine belongs to the thread that opened it: devices, OpenMP's cores and interrupts are that thread's.
"""

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import Future, ThreadPoolExecutor, wait
from functools import partial
from itertools import count
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vllm import LLM, RequestOutput, SamplingParams
    from vllm.lora.request import LoRARequest


class SteppedEngine:
    """What `rft.agents.conversation.converse` takes for an engine, over a `vllm.LLM`.

    Args:
        llm: used by nobody else meanwhile.
        lora_request: vLLM's, where the engine serves the adapter natively.
    """

    def __init__(self, llm: "LLM", lora_request: "LoRARequest | None" = None):
        self._engine, self._lora_request = llm.llm_engine, lora_request
        self._calls: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._names, self._waiting = map("turn-{}".format, count()), {}

    async def generate(self, token_ids: list[int], sampling_params: "SamplingParams") -> "RequestOutput":
        """The finished output of one request; for coroutines that `run` runs."""
        loop = asyncio.get_running_loop()
        answer = loop.create_future()
        self.call(partial(self._add, token_ids, sampling_params, loop, answer))
        return await answer

    def call(self, function: Callable[[], None]) -> None:
        """Have a function called between two steps by the thread of `run`, which raises what it raises."""
        self._calls.put(function)

    def run(self, work: Coroutine) -> None:
        """Step the engine until `work` has ended, which runs in an event loop of another thread.

        Raises what ended the work, the engine or a function of `call`; nothing is left in the engine then.
        """
        loop = asyncio.new_event_loop()
        task = loop.create_task(work)
        with ThreadPoolExecutor(1, "conversations") as thread:
            ended = thread.submit(loop.run_until_complete, task)
            ended.add_done_callback(lambda _: self._calls.put(None))
            try:
                self._step_until(ended)
            finally:
                loop.call_soon_threadsafe(task.cancel)
                wait([ended])
                loop.close()
                if self._waiting:
                    self._engine.abort_request(list(self._waiting))
                    self._waiting.clear()
        ended.result()

    def _step_until(self, ended: Future) -> None:
        while not (ended.done() and self._calls.empty()):
            self._call_due()
            if not self._engine.has_unfinished_requests():
                continue
            for output in self._engine.step():
                if output.finished:
                    loop, answer = self._waiting.pop(output.request_id)
                    loop.call_soon_threadsafe(_set, answer, output)

    def _call_due(self) -> None:
        """Call what waits to be called; while the engine has nothing to do, wait for one."""
        block = not self._engine.has_unfinished_requests()
        while True:
            try:
                function = self._calls.get(block)
            except Empty:
                return
            block = False
            if function is not None:
                function()

    def _add(self, token_ids: list[int], params: "SamplingParams", loop, answer: asyncio.Future) -> None:
        name = next(self._names)
        self._engine.add_request(name, {"prompt_token_ids": token_ids}, params, lora_request=self._lora_request)
        self._waiting[name] = loop, answer


def _set(answer: asyncio.Future, output: "RequestOutput") -> None:
    if not answer.done():  # its conversation may have been cancelled
        answer.set_result(output)

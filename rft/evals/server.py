"""One engine at a time, serving one model after another, each probed before its first number."""

import gc
from pathlib import Path

from rft.evals import probe
from rft.evals.models import Model, adapter_digest
from rft.hooks.saved_adapter import is_adapter, read_adapter


class Server:
    """Keeps an engine while models share its base, and opens another where they do not.

    Args:
        max_model_len: prompt plus completion, tokens.
        prompts: for each base checkpoint, token lists for the probe.
        options: for each base checkpoint, further options of `rft.serving.engine.open_engine`: `head_dtype`, and the
            room for adapters (`rft.evals.models.adapter_room`).
        serving: how adapters are served: `exact`, `merged` or `native` (vLLM's own LoRA).
        reference: device of the PEFT model that the probe compares with; None leaves that check out.
        tensor_parallel_size: ranks of the engine.
    """

    def __init__(
        self,
        max_model_len: int,
        prompts: dict[Path, list[list[int]]],
        options: dict[Path, dict] | None = None,
        serving: str = "exact",
        reference: str | None = "cpu",
        tensor_parallel_size: int = 1,
    ) -> None:
        self.max_model_len, self.prompts, self.options, self.serving = max_model_len, prompts, options or {}, serving
        self.native = serving == "native"
        self.reference, self.tensor_parallel_size = reference, tensor_parallel_size
        self.llm = self.base = self.adapter = self.names = self.model = None
        self.sequences, self.base_log_probs = None, None

    def serve(self, model: Model) -> tuple[object, object, dict]:
        """The engine serving `model`, the LoRA request to sample with (None but for native LoRA), and what ran.

        Raises:
            ValueError: the probe failed, or the engine refused the adapter.
        """
        adapter = model.path if is_adapter(model.path) else None
        names = {layer["name"] for layer in read_adapter(adapter)[0]["layers"]} if adapter else None
        # By sync a base is never read from under an adapter, nor an adapter from under one of other layers.
        under = self.adapter is not None and not self.native and (adapter is None or names != self.names)
        if self.base != model.base or under:
            self.close()
            self._open(model.base)
        how = {"method": "base checkpoint" if adapter is None else f"{self.serving} LoRA"}
        how |= self.backends
        if adapter is None:
            return self.llm, None, how
        changed, request = None, None
        if self.native:
            from vllm.lora.request import LoRARequest

            request = LoRARequest(model.name, 1 + int(adapter_digest(adapter)[:7], 16), str(adapter.resolve()))
        elif adapter != self.adapter:
            from rft.serving.engine import serve_adapter

            self.receipts = serve_adapter(self.llm, str(adapter))
        if not self.native:
            how["receipts"] = self.receipts
            changed = max(receipt["changed_share"] for receipt in self.receipts) > 0
        self.adapter, self.names = adapter, names
        return self.llm, request, how | {"probe": self._probed(adapter, changed, request)}

    def _open(self, base: Path) -> None:
        from rft.serving.engine import open_engine
        from rft.serving.served import backends

        options = self.options.get(base, {}) | ({"enable_lora": True, "max_lora_rank": 64} if self.native else {})
        self.llm = open_engine(str(base), self.max_model_len + 2, self.tensor_parallel_size, **options)
        self.base = base
        self.backends = {"backends": self.llm.collective_rpc(backends)[0]}
        self.sequences = probe.continued(self.llm, self.prompts[base])
        self.base_log_probs = probe.engine_log_probs(self.llm, self.sequences)

    def _probed(self, adapter: Path, changed: bool | None, request) -> dict:
        served = probe.engine_log_probs(self.llm, self.sequences, request)
        reference = None
        if self.reference:
            if self.model is None:
                self.model = probe.load_reference(self.base, self.reference)
                self.model_log_probs = probe.reference_log_probs(self.model, self.sequences)
            reference = self.model_log_probs, probe.adapter_log_probs(self.model, adapter, self.sequences)
        return probe.require_served(self.base_log_probs, served, changed, reference)

    def close(self) -> None:
        """Shut the engine down and free its memory."""
        if self.llm is not None:
            self.llm.llm_engine.engine_core.shutdown()
        self.llm = self.base = self.adapter = self.names = self.model = None
        gc.collect()

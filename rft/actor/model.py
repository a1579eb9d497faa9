"""transformers' gpt-oss over packed sequences, with experts that stay in MXFP4: the resident actor.

The module tree and the parameter names are transformers' own, so PEFT, adapter files and the sync find what they know;
only the classes differ. Hidden states are (tokens, hidden): no padding, no batch dimension. docs/actor.md has the
arithmetic.
"""

import torch
from torch.nn import functional
from transformers import GptOssForCausalLM
from transformers.models.gpt_oss import modeling_gpt_oss as gpt_oss

from rft.actor.attention import sink_attention
from rft.actor.experts import ResidentExperts
from rft.actor.log_probs import log_probs
from rft.actor.norm import add_rms_norm, rms_norm
from rft.actor.packed import Packed
from rft.actor.qkv import exact_operands, rotated_qkv
from rft.actor.rotary import rotate
from rft.record.activations import backward_bytes, first_product_bytes, kept_bytes, log_prob_bytes

REDUCE_BUCKET = 10**9  # bytes that DeepSpeed takes in a backward pass under ZeRO 1 and 2: 5e8 elements of bf16
USABLE = 0.95  # of the free memory; the rest is lost between blocks of other sizes


class ResidentNorm(gpt_oss.GptOssRMSNorm):
    """RMSNorm of (tokens, hidden), computed in float32; with `delta` of a sum, which is returned as well."""

    def forward(
        self, x: torch.Tensor, delta: torch.Tensor | None = None
    ) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
        if delta is None:
            return rms_norm(x, self.weight, self.variance_epsilon)
        return add_rms_norm(x, delta, self.weight, self.variance_epsilon)


class ResidentAttention(gpt_oss.GptOssAttention):
    """Attention with sinks within each packed sequence."""

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, packed: Packed) -> torch.Tensor:
        projections = self.q_proj, self.k_proj, self.v_proj
        if (layers := exact_operands(projections)) is not None:
            q, k, v = rotated_qkv(x, layers, cos, sin, self.head_dim)
        else:
            q, k, v = (project(x).unflatten(-1, (-1, self.head_dim)) for project in projections)
            q, k = rotate(q, k, cos, sin)
        out = sink_attention(q, k, v, self.sinks, packed, self.sliding_window, self.scaling)
        return self.o_proj(out.flatten(-2))


class ResidentMLP(gpt_oss.GptOssMLP):
    """Router and experts. The weights of the chosen experts are a softmax in float32, as in the engine."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        logits = functional.linear(x, self.router.weight, self.router.bias)
        chosen, indices = logits.topk(self.router.top_k, dim=-1)
        weights = chosen.softmax(-1, dtype=torch.promote_types(chosen.dtype, torch.float32))
        return self.experts(x, weights, indices)


class ResidentLayer(gpt_oss.GptOssDecoderLayer):
    """One decoder layer; recomputed in the backward pass where `gradient_checkpointing` is on."""

    def forward(self, x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor, packed: Packed) -> torch.Tensor:
        x, normed = self.post_attention_layernorm(x, self.self_attn(self.input_layernorm(x), cos, sin, packed))
        return x + self.mlp(normed)


class ResidentHead(torch.nn.Linear):
    """The output layer, which gives log-probabilities of tokens instead of logits; takes `log_probs`'s arguments."""

    def forward(
        self, hidden: torch.Tensor, labels: torch.Tensor, temperature: float, float32_logits: bool, entropy: str
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        return log_probs(hidden, self.weight, labels, temperature, float32_logits, entropy)


class ResidentGptOss(GptOssForCausalLM):
    """A causal language model whose forward pass scores tokens of packed sequences."""

    def forward(
        self,
        input_ids: torch.Tensor,
        packed: Packed,
        rows: torch.Tensor,
        targets: torch.Tensor,
        temperature: float = 1.0,
        float32_logits: bool = True,
        entropy: str = "none",
        **_: object,
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """Log-probabilities and entropies of some tokens.

        Args:
            input_ids: (tokens,) of all sequences, one after another.
            packed: where each sequence begins.
            rows: (scored,) the places in `input_ids` after which a token is scored.
            targets: (scored,) the tokens scored there.
            temperature, float32_logits, entropy: see `log_probs`.
            **_: what PEFT adds to a call.

        Returns:
            log-probabilities (scored,) and entropies (scored,) or None, float32, nats.
        """
        body = self.model
        x = body.embed_tokens(input_ids)
        cos, sin = (table[0] for table in body.rotary_emb(x, packed.positions[None]))
        keep = torch.is_grad_enabled() and keeps_first_products(self, len(input_ids))
        for layer in body.layers:
            layer.mlp.experts.keep_h = keep
            x = layer(x, cos, sin, packed)
        return self.lm_head(body.norm(x[rows]), targets, temperature, float32_logits, entropy)


RESIDENT = {
    gpt_oss.GptOssRMSNorm: ResidentNorm,
    gpt_oss.GptOssAttention: ResidentAttention,
    gpt_oss.GptOssMLP: ResidentMLP,
    gpt_oss.GptOssDecoderLayer: ResidentLayer,
    GptOssForCausalLM: ResidentGptOss,
}


def make_resident(model: GptOssForCausalLM) -> ResidentGptOss:
    """Give a model of transformers the classes above, in place; its experts must be `ResidentExperts` already.

    Raises:
        ValueError: they are not, or the head has a bias.
    """
    for module in list(model.modules()):
        module.__class__ = RESIDENT.get(type(module), type(module))
    head = model.lm_head
    if type(head) is not torch.nn.Linear or head.bias is not None:
        raise ValueError(f"resident actor: found a {type(head).__name__} as head, wanted a linear layer without bias")
    head.__class__ = ResidentHead
    for layer in model.model.layers:
        if not isinstance(layer.mlp.experts, ResidentExperts):
            raise ValueError(f"resident actor: found {type(layer.mlp.experts).__name__}, wanted ResidentExperts")
    return model


def keeps_first_products(model: ResidentGptOss, tokens: int) -> bool:
    """Whether the experts keep their first product for the backward pass, as memory allows: 46 kB a token and layer.

    Otherwise it is computed again, with the same bits. Where layers are recomputed it lives for one layer only.
    """
    layers, config = model.model.layers, model.config
    if layers[0].gradient_checkpointing and model.training:
        return True
    device = model.lm_head.weight.device
    if device.type != "cuda":
        return True
    sizes = config.to_dict()
    a_token = config.num_hidden_layers * (first_product_bytes(sizes) + kept_bytes(sizes)) + backward_bytes(sizes)
    need = tokens * a_token + log_prob_bytes(sizes, tokens)
    unused = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return need + REDUCE_BUCKET < USABLE * (torch.cuda.mem_get_info(device)[0] + unused)

"""A Qwen3-shaped decoder in plain PyTorch, its optimizer, and the folder that Grebe loads.

Attention takes a dense mask, the one a plan means, or is causal. Where PyTorch is old (1.13 on a CPU,
for tests) attention is written out; where it is new, it is one call."""

import json
import math
import os
import struct

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

HAVE_SDPA = hasattr(F, "scaled_dot_product_attention")


class Shape:
    def __init__(self, vocab, hidden=256, layers=4, heads=4, kv_heads=2, inter=768, theta=10000.0, positions=8192):
        self.vocab, self.hidden, self.layers, self.heads = vocab, hidden, layers, heads
        self.kv_heads, self.inter, self.theta, self.positions = kv_heads, inter, theta, positions
        self.head_dim = hidden // heads


def rms(x, weight, eps=1e-6):
    if hasattr(F, "rms_norm"):
        return F.rms_norm(x, (x.shape[-1],), weight.to(x.dtype), eps)
    y = x.float()
    y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + eps)
    return (y * weight).to(x.dtype)


def rotate(x, cos, sin):
    half = x.shape[-1] // 2
    a, b = x[..., :half], x[..., half:]
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)


def attend(q, k, v, bias):
    """q, k, v: [batch, heads, rows, dim]; bias: [batch, 1, rows, rows], or None for causal."""
    if HAVE_SDPA and q.is_cuda:
        from torch.nn.attention import SDPBackend, sdpa_kernel

        if bias is None:
            with sdpa_kernel(SDPBackend.FLASH_ATTENTION):
                return F.scaled_dot_product_attention(q, k, v, is_causal=True)
        with sdpa_kernel(SDPBackend.EFFICIENT_ATTENTION):
            return F.scaled_dot_product_attention(q, k, v, attn_mask=bias.expand(-1, q.shape[1], -1, -1))
    scores = (q @ k.transpose(-1, -2)).float() / math.sqrt(q.shape[-1])
    if bias is None:
        n = q.shape[2]
        bias = torch.full((n, n), float("-inf"), device=q.device).triu(1)
    return torch.softmax(scores + bias.float(), -1).to(v.dtype) @ v


class Layer(nn.Module):
    def __init__(self, s):
        super().__init__()
        self.s = s
        q, kv = s.heads * s.head_dim, s.kv_heads * s.head_dim
        self.norm1, self.norm2 = nn.Parameter(torch.ones(s.hidden)), nn.Parameter(torch.ones(s.hidden))
        self.qnorm, self.knorm = nn.Parameter(torch.ones(s.head_dim)), nn.Parameter(torch.ones(s.head_dim))
        scale = 1 / math.sqrt(s.hidden)
        self.q = nn.Parameter(torch.randn(q, s.hidden) * scale)
        self.k = nn.Parameter(torch.randn(kv, s.hidden) * scale)
        self.v = nn.Parameter(torch.randn(kv, s.hidden) * scale)
        self.o = nn.Parameter(torch.zeros(s.hidden, q))
        self.gate = nn.Parameter(torch.randn(s.inter, s.hidden) * scale)
        self.up = nn.Parameter(torch.randn(s.inter, s.hidden) * scale)
        self.down = nn.Parameter(torch.zeros(s.hidden, s.inter))

    def forward(self, x, cos, sin, bias, dropout):
        s = self.s
        b, n, _ = x.shape
        y = rms(x, self.norm1)
        q, k, v = F.linear(y, torch.cat((self.q, self.k, self.v)).to(y.dtype)).split(
            (s.heads * s.head_dim, s.kv_heads * s.head_dim, s.kv_heads * s.head_dim), dim=-1
        )
        q = rotate(rms(q.reshape(b, n, s.heads, s.head_dim), self.qnorm), cos, sin).transpose(1, 2)
        k = rotate(rms(k.reshape(b, n, s.kv_heads, s.head_dim), self.knorm), cos, sin).transpose(1, 2)
        v = v.reshape(b, n, s.kv_heads, s.head_dim).transpose(1, 2)
        group = s.heads // s.kv_heads
        k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
        y = attend(q.to(v.dtype), k.to(v.dtype), v, bias).transpose(1, 2).reshape(b, n, -1)
        x = x + F.dropout(F.linear(y, self.o.to(y.dtype)), dropout, self.training)
        y = rms(x, self.norm2)
        gate, up = F.linear(y, torch.cat((self.gate, self.up)).to(y.dtype)).chunk(2, dim=-1)
        return x + F.dropout(F.linear(F.silu(gate) * up, self.down.to(y.dtype)), dropout, self.training)


class Decoder(nn.Module):
    """features, where given, are rows of numbers per identifier ([items, features], −1 for none) that index
    a table whose rows are added to the identifiers' embeddings: items that share a brand or a word share
    what is learned of it. The exported embedding is the sum."""

    def __init__(self, shape, first_identifier=0, features=None, dropout=0.0):
        super().__init__()
        self.shape, self.first, self.dropout = shape, first_identifier, dropout
        self.embed = nn.Parameter(torch.randn(shape.vocab, shape.hidden) * 0.02)
        self.layers = nn.ModuleList(Layer(shape) for _ in range(shape.layers))
        self.norm = nn.Parameter(torch.ones(shape.hidden))
        self.table = None
        if features is not None:
            self.register_buffer("features", features.long() + 1)
            self.table = nn.Parameter(torch.randn(int(features.max()) + 2, shape.hidden) * 0.01)
        inv = shape.theta ** (-torch.arange(0, shape.head_dim, 2).float() / shape.head_dim)
        angle = torch.arange(shape.positions).float()[:, None] * inv[None, :]
        self.register_buffer("cos", angle.cos(), persistent=False)
        self.register_buffer("sin", angle.sin(), persistent=False)

    def embedding(self):
        """Returns the whole embedding, which is the output projection too."""
        if self.table is None:
            return self.embed
        shared = F.embedding_bag(self.features, self.table, mode="sum", padding_idx=0)
        end = self.first + shared.shape[0]
        return torch.cat((self.embed[: self.first], self.embed[self.first : end] + shared, self.embed[end:]))

    def forward(self, embedding, tokens, positions, bias=None, dtype=torch.float32):
        """Returns the hidden states before the last norm: [batch, rows, hidden]."""
        x = F.embedding(tokens, embedding).to(dtype)
        x = F.dropout(x, self.dropout, self.training)
        cos, sin = self.cos[positions][:, :, None, :].to(dtype), self.sin[positions][:, :, None, :].to(dtype)
        for layer in self.layers:
            x = layer(x, cos, sin, bias, self.dropout)
        return x

    def last(self, hidden):
        return rms(hidden, self.norm)

    def optimizers(self, matrices=0.02, others=3e-3, decay=0.01):
        """Returns the optimizer of the layers' matrices (Muon) and that of all else (AdamW)."""
        inner = [p for p in self.layers.parameters() if p.dim() == 2]
        known = {id(p) for p in inner}
        rest = [p for p in self.parameters() if id(p) not in known]
        extra = {"fused": True} if inner[0].is_cuda else {}
        return [
            Muon(inner, lr=matrices, decay=decay),
            torch.optim.AdamW(rest, lr=others, betas=(0.9, 0.98), weight_decay=0.0, **extra),
        ]

    def save(self, folder, extra=None):
        """Writes a plain Hugging Face folder in bf16."""
        os.makedirs(folder, exist_ok=True)
        s = self.shape
        out = {"model.embed_tokens.weight": self.embedding(), "model.norm.weight": self.norm}
        names = {
            "norm1": "input_layernorm", "norm2": "post_attention_layernorm", "q": "self_attn.q_proj", "k": "self_attn.k_proj",
            "v": "self_attn.v_proj", "o": "self_attn.o_proj", "qnorm": "self_attn.q_norm", "knorm": "self_attn.k_norm",
            "gate": "mlp.gate_proj", "up": "mlp.up_proj", "down": "mlp.down_proj",
        }
        for i, layer in enumerate(self.layers):
            for ours, theirs in names.items():
                out[f"model.layers.{i}.{theirs}.weight"] = getattr(layer, ours)
        save_bf16(os.path.join(folder, "model.safetensors"), out)
        config = {
            "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_size": s.hidden, "num_hidden_layers": s.layers,
            "num_attention_heads": s.heads, "num_key_value_heads": s.kv_heads, "head_dim": s.head_dim, "intermediate_size": s.inter,
            "vocab_size": s.vocab, "max_position_embeddings": s.positions, "hidden_act": "silu", "rms_norm_eps": 1e-6,
            "tie_word_embeddings": True, "attention_bias": False, "rope_theta": s.theta, "rope_scaling": None, "torch_dtype": "bfloat16",
        }
        config.update(extra or {})
        with open(os.path.join(folder, "config.json"), "w") as f:
            json.dump(config, f, indent=2)
            f.write("\n")

    @torch.no_grad()
    def round(self):
        """Makes the weights those of a bf16 folder: what is measured afterwards is what is served."""
        if self.table is not None:
            self.embed.copy_(self.embedding())
            self.table.zero_()
        for p in self.parameters():
            p.copy_(p.to(torch.bfloat16).float())


def save_bf16(path, tensors):
    """Writes safetensors, names in order."""
    header, blobs, at = {"__metadata__": {"format": "pt"}}, [], 0
    for name in sorted(tensors):
        t = tensors[name].detach().to(torch.bfloat16).cpu().contiguous()
        blob = t.view(torch.int16).numpy().astype("<i2").tobytes()
        header[name] = {"dtype": "BF16", "shape": list(t.shape), "data_offsets": [at, at + len(blob)]}
        blobs.append(blob)
        at += len(blob)
    head = json.dumps(header, separators=(",", ":")).encode()
    head += b" " * (-len(head) % 8)
    with open(path, "wb") as f:
        f.write(struct.pack("<Q", len(head)) + head)
        for b in blobs:
            f.write(b)


class Muon(torch.optim.Optimizer):
    """Momentum whose updates are made orthogonal (five Newton-Schulz steps), for matrices."""

    def __init__(self, params, lr, momentum=0.95, decay=0.0):
        super().__init__(params, dict(lr=lr, momentum=momentum, decay=decay))

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            shapes = {}
            for p in group["params"]:
                if p.grad is not None:
                    shapes.setdefault(p.shape, []).append(p)
            for shape, params in shapes.items():
                self.update(shape, params, group)

    def update(self, shape, params, group):
        state = self.state[params[0]]
        if "m" not in state:
            state["m"] = torch.zeros((len(params),) + tuple(shape), device=params[0].device)
        g = torch.stack([p.grad.float() for p in params])
        state["m"].lerp_(g, 1 - group["momentum"])
        u = orthogonal(g.lerp(state["m"], group["momentum"]))
        scale = group["lr"] * max(1.0, shape[0] / shape[1]) ** 0.5
        for p, x in zip(params, u):
            p.mul_(1 - group["lr"] * group["decay"]).add_(x, alpha=-scale)


def orthogonal(g):
    a, b, c = 3.4445, -4.7750, 2.0315
    x = g.to(torch.bfloat16) if g.is_cuda else g
    tall = x.shape[-2] > x.shape[-1]
    if tall:
        x = x.transpose(-1, -2)
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    for _ in range(5):
        y = x @ x.transpose(-1, -2)
        x = a * x + (b * y + c * y @ y) @ x
    return (x.transpose(-1, -2) if tall else x).float()


def dense_bias(seen, segments, dtype):
    """Makes the mask of plans: seen [batch, segments, segments], segments [batch, rows] → 0 or −∞."""
    segments = segments.long()
    b, n = segments.shape
    rows = torch.gather(seen, 1, segments[:, :, None].expand(-1, -1, seen.shape[2]))
    mask = torch.gather(rows, 2, segments[:, None, :].expand(-1, n, -1))
    at = torch.arange(n, device=segments.device)
    mask |= (segments[:, :, None] == segments[:, None, :]) & (at[None, :, None] >= at[None, None, :])
    bias = torch.zeros((b, 1, n, n), dtype=dtype, device=segments.device)
    return bias.masked_fill_(~mask[:, None], float("-inf"))


def as_numpy(x):
    return x.detach().float().cpu().numpy()


def seed_all(seed):
    np.random.seed(seed)
    torch.manual_seed(seed)

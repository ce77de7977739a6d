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


def rms(x, eps=1e-6):
    if hasattr(F, "rms_norm"):
        return F.rms_norm(x, (x.shape[-1],), None, eps)
    y = x.float()
    return (y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + eps)).to(x.dtype)


def rotate(x, cos, sin):
    half = x.shape[-1] // 2
    a, b = x[..., :half], x[..., half:]
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)


def attend(q, k, v, bias):
    """q, k, v: [batch, heads, rows, dim]; bias: [batch, 1, rows of q, rows of k], or None for causal."""
    if HAVE_SDPA and q.is_cuda and q.dtype != torch.float32:
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


SHARP = 2.0  # the norms' weights are fixed: 1 everywhere, but for queries, which decide how sharp attention can be


class Decoder(nn.Module):
    """The weights of all layers are stacked: few tensors make few launches.

    features, where given, are rows of numbers per identifier ([items, features], −1 for none) that index
    a table whose rows are added to the identifiers' embeddings: items that share a brand or a word share
    what is learned of it. The exported embedding is the sum."""

    def __init__(self, shape, first_identifier=0, features=None, dropout=0.0):
        super().__init__()
        s = shape
        self.shape, self.first, self.dropout = s, first_identifier, dropout
        self.embed = nn.Parameter(torch.randn(s.vocab, s.hidden) * 0.02)
        q, kv, scale = s.heads * s.head_dim, s.kv_heads * s.head_dim, s.hidden**-0.5
        self.qkv = nn.Parameter(torch.randn(s.layers, q + 2 * kv, s.hidden) * scale)
        self.o = nn.Parameter(torch.zeros(s.layers, s.hidden, q))
        self.gate_up = nn.Parameter(torch.randn(s.layers, 2 * s.inter, s.hidden) * scale)
        self.down = nn.Parameter(torch.zeros(s.layers, s.hidden, s.inter))
        self.table = None
        if features is not None:
            has = incidence(features)
            self.register_buffer("has", has)
            self.table = nn.Parameter(torch.randn(has.shape[1], s.hidden) * 0.01)
        inv = s.theta ** (-torch.arange(0, s.head_dim, 2).float() / s.head_dim)
        angle = torch.arange(s.positions).float()[:, None] * inv[None, :]
        self.register_buffer("cos", angle.cos(), persistent=False)
        self.register_buffer("sin", angle.sin(), persistent=False)

    def embedding(self):
        """Returns the whole embedding, which is the output projection too."""
        if self.table is None:
            return self.embed
        shared = self.has @ self.table.to(self.has.dtype)
        end = self.first + shared.shape[0]
        return torch.cat((self.embed[: self.first], self.embed[self.first : end] + shared, self.embed[end:]))

    def forward(self, embedding, tokens, positions, bias=None, dtype=torch.float32, split=0, watch=None):
        """Returns the hidden states before the last norm: [batch, rows, hidden].

        bias is the mask of all rows, a list of one for each layer, or None for causal. With split, the rows before it
        see only each other; bias is then (theirs or None, that of the rows behind). watch, a list, gets of each layer where the last row's
        attention goes: [batch, heads, rows]."""
        s = self.shape
        b, n = tokens.shape
        x = F.embedding(tokens, embedding).to(dtype)
        x = F.dropout(x, self.dropout, self.training)
        cos, sin = self.cos[positions][:, :, None, :].to(dtype), self.sin[positions][:, :, None, :].to(dtype)
        q, kv, d = s.heads * s.head_dim, s.kv_heads * s.head_dim, s.head_dim
        group = s.heads // s.kv_heads
        stacked = [w.to(dtype).unbind(0) for w in (self.qkv, self.o, self.gate_up, self.down)]
        for i, (w_qkv, w_o, w_gate_up, w_down) in enumerate(zip(*stacked)):
            qk, v = F.linear(rms(x), w_qkv).split((q + kv, kv), dim=-1)
            qk = rotate(rms(qk.reshape(b, n, s.heads + s.kv_heads, d)), cos, sin).transpose(1, 2)
            qs, ks = qk[:, : s.heads] * SHARP, qk[:, s.heads :].repeat_interleave(group, 1)
            vs = v.reshape(b, n, s.kv_heads, d).transpose(1, 2).repeat_interleave(group, 1)
            if split:
                first = attend(qs[:, :, :split], ks[:, :, :split], vs[:, :, :split], bias[0])
                y = torch.cat((first, attend(qs[:, :, split:], ks, vs, bias[1])), 2)
            else:
                y = attend(qs, ks, vs, bias[i] if isinstance(bias, list) else bias)
            if watch is not None:
                watch.append(torch.softmax((qs[:, :, -1:] @ ks.transpose(-1, -2))[:, :, 0].float() / math.sqrt(d), -1))
            y = y.transpose(1, 2).reshape(b, n, q)
            x = x + F.dropout(F.linear(y, w_o), self.dropout, self.training)
            gate, up = F.linear(rms(x), w_gate_up).chunk(2, dim=-1)
            x = x + F.dropout(F.linear(F.silu(gate) * up, w_down), self.dropout, self.training)
        return x

    def last(self, hidden):
        return rms(hidden)

    def optimizers(self, matrices=0.02, others=3e-3, decay=0.01):
        """Returns the optimizer of the layers' matrices (Muon) and that of all else (AdamW)."""
        inner = [self.qkv, self.o, self.gate_up, self.down]
        known = {id(p) for p in inner}
        rest = [p for p in self.parameters() if id(p) not in known]
        extra = {"fused": True} if inner[0].is_cuda else {}
        return [
            Muon(inner, lr=matrices, decay=decay),
            torch.optim.AdamW(rest, lr=others, betas=(0.9, 0.98), weight_decay=0.0, **extra),
        ]

    def tensors(self):
        """Returns the tensors of a checkpoint by their names at Hugging Face."""
        s = self.shape
        q, kv = s.heads * s.head_dim, s.kv_heads * s.head_dim
        ones = torch.ones(s.hidden)
        out = {"model.embed_tokens.weight": self.embedding(), "model.norm.weight": ones}
        for i in range(s.layers):
            w_q, w_k, w_v = self.qkv[i].split((q, kv, kv))
            gate, up = self.gate_up[i].chunk(2)
            layer = {
                "input_layernorm": ones, "post_attention_layernorm": ones, "self_attn.q_proj": w_q, "self_attn.k_proj": w_k,
                "self_attn.v_proj": w_v, "self_attn.o_proj": self.o[i], "self_attn.q_norm": torch.full((s.head_dim,), SHARP),
                "self_attn.k_norm": torch.ones(s.head_dim), "mlp.gate_proj": gate, "mlp.up_proj": up, "mlp.down_proj": self.down[i],
            }
            out.update({f"model.layers.{i}.{name}.weight": t for name, t in layer.items()})
        return out

    def save(self, folder):
        """Writes a plain Hugging Face folder in bf16."""
        os.makedirs(folder, exist_ok=True)
        s = self.shape
        save_bf16(os.path.join(folder, "model.safetensors"), self.tensors())
        config = {
            "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "hidden_size": s.hidden, "num_hidden_layers": s.layers,
            "num_attention_heads": s.heads, "num_key_value_heads": s.kv_heads, "head_dim": s.head_dim, "intermediate_size": s.inter,
            "vocab_size": s.vocab, "max_position_embeddings": s.positions, "hidden_act": "silu", "rms_norm_eps": 1e-6,
            "tie_word_embeddings": True, "attention_bias": False, "rope_theta": s.theta, "rope_scaling": None, "torch_dtype": "bfloat16",
        }
        with open(os.path.join(folder, "config.json"), "w") as f:
            json.dump(config, f, indent=2)
            f.write("\n")

    @torch.no_grad()
    def load(self, folder):
        """Reads the weights of a folder that save wrote."""
        t = load_bf16(os.path.join(folder, "model.safetensors"))
        self.embed.copy_(t["model.embed_tokens.weight"])
        if self.table is not None:
            self.table.zero_()
        for i in range(self.shape.layers):
            w = {k[len(f"model.layers.{i}.") : -len(".weight")]: v for k, v in t.items() if k.startswith(f"model.layers.{i}.")}
            self.qkv[i].copy_(torch.cat([w[f"self_attn.{x}_proj"] for x in "qkv"]))
            self.o[i].copy_(w["self_attn.o_proj"])
            self.gate_up[i].copy_(torch.cat((w["mlp.gate_proj"], w["mlp.up_proj"])))
            self.down[i].copy_(w["mlp.down_proj"])

    @torch.no_grad()
    def round(self):
        """Makes the weights those of a bf16 folder: what is measured afterwards is what is served."""
        if self.table is not None:
            self.embed.copy_(self.embedding())
            self.table.zero_()
        for p in self.parameters():
            p.copy_(p.to(torch.bfloat16).float())


def incidence(features):
    """Turns lists of numbers into a matrix of counts, without the columns that nobody has."""
    known, column = torch.unique(features, return_inverse=True)
    out = torch.zeros((len(features), len(known)))
    out.scatter_add_(1, column, torch.ones(features.shape))
    out = out[:, known >= 0]
    return out.to(torch.bfloat16) if torch.cuda.is_available() else out


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
    """Momentum whose updates are made orthogonal (five Newton-Schulz steps), for stacks of matrices."""

    def __init__(self, params, lr, momentum=0.95, decay=0.0):
        super().__init__(params, dict(lr=lr, momentum=momentum, decay=decay))

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if "m" not in state:
                    state["m"] = torch.zeros_like(p)
                state["m"].lerp_(p.grad, 1 - group["momentum"])
                u = orthogonal(p.grad.lerp(state["m"], group["momentum"]))
                scale = group["lr"] * max(1.0, p.shape[-2] / p.shape[-1]) ** 0.5
                p.mul_(1 - group["lr"] * group["decay"]).add_(u.to(p.dtype), alpha=-scale)


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
    return x.transpose(-1, -2) if tall else x


def load_bf16(path):
    """Reads what save_bf16 wrote, as float32."""
    with open(path, "rb") as f:
        (n,) = struct.unpack("<Q", f.read(8))
        header = json.loads(f.read(n))
        data = f.read()
    out = {}
    for name, t in header.items():
        if name != "__metadata__":
            a, b = t["data_offsets"]
            x = np.frombuffer(data[a:b], dtype="<u2").astype(np.uint32) << 16
            out[name] = torch.from_numpy(x.view(np.float32).reshape(t["shape"]).copy())
    return out


def dense_bias(seen, segments, dtype, first=0, keys=None):
    """Makes the mask of plans: seen [batch, segments, segments], segments [batch, rows] → 0 or −∞, for the rows
    from first on and the keys before keys."""
    segments = segments.long()
    keys = keys or segments.shape[1]
    ours, theirs = segments[:, first:], segments[:, :keys]
    rows = torch.gather(seen, 1, ours[:, :, None].expand(-1, -1, seen.shape[2]))
    mask = torch.gather(rows, 2, theirs[:, None, :].expand(-1, ours.shape[1], -1))
    at = torch.arange(segments.shape[1], device=segments.device)
    mask |= (ours[:, :, None] == theirs[:, None, :]) & (at[None, first:, None] >= at[None, None, :keys])
    bias = torch.zeros((len(segments), 1, ours.shape[1], keys), dtype=dtype, device=segments.device)
    return bias.masked_fill_(~mask[:, None], float("-inf"))


def seed_all(seed):
    np.random.seed(seed)
    torch.manual_seed(seed)

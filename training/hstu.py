"""Trains the shop's HSTU: a customer's stream in, scores of candidates and the next item out.

    python3 hstu.py --data arrays --out hstu --seconds 60

The computation, masks and positions are those of model/hstu/FORMAT.md, with absolute positions, no times and
a constant scale, so that a returning user's rows are reused. A stream has a row per purchase with its stars and,
unless --marks 0, rows for the profile, for each visit and for what was searched for: what the language
model reads in the text. Batches are alternately user-first (candidates
see the history; every history row also predicts the next purchase) and item-first.
"""

import argparse
import json
import os
import time

import numpy as np
import torch
import torch.nn as nn
import torch.nn.functional as F

from data import Split, World
from decoder import Muon, incidence, save_bf16, seed_all
from lm import Clock, ndcg, rate

ACTIONS = (1, 2, 4)  # bits of the stars


class STU(nn.Module):
    def __init__(self, d, heads, qk, linear):
        super().__init__()
        self.heads, self.qk, self.linear = heads, qk, linear
        self.norm_w, self.norm_b = nn.Parameter(torch.ones(d)), nn.Parameter(torch.zeros(d))
        self.uvqk = nn.Parameter(torch.randn(d, heads * (2 * linear + 2 * qk)) / d**0.5)
        self.beta = nn.Parameter(torch.zeros(heads * (2 * linear + 2 * qk)))
        self.out_w, self.out_b = nn.Parameter(torch.ones(heads * linear)), nn.Parameter(torch.zeros(heads * linear))
        self.out = nn.Parameter(torch.randn(3 * heads * linear, d) * 0.02)

    def forward(self, x, mask, scale):
        b, n, d = x.shape
        h, a, v_ = self.heads, self.qk, self.linear
        y = F.layer_norm(x, (d,), self.norm_w.to(x.dtype), self.norm_b.to(x.dtype), 1e-6)
        y = y @ self.uvqk.to(x.dtype) + self.beta.to(x.dtype)
        u, v, q, k = y.split((h * v_, h * v_, h * a, h * a), dim=-1)
        u = F.silu(u)
        q, k, v = (t.reshape(b, n, h, -1).transpose(1, 2) for t in (q, k, v))
        scores = F.silu(q @ k.transpose(-1, -2) * a**-0.5) * (mask[:, None] / scale)
        got = (scores @ v).transpose(1, 2).reshape(b, n, h * v_)
        normed = F.layer_norm(got, (h * v_,), self.out_w.to(x.dtype), self.out_b.to(x.dtype), 1e-6)
        return x + torch.cat((u, got, u * normed), -1) @ self.out.to(x.dtype)


class HSTU(nn.Module):
    def __init__(self, items, marks, d, layers, heads, positions, scale, hidden, features):
        super().__init__()
        self.count = items
        self.d, self.positions, self.scale, self.heads, self.hidden = d, positions, scale, heads, hidden
        self.free = nn.Parameter(torch.randn(items + marks, d) * 0.02)
        has = incidence(features)
        self.register_buffer("has", has)
        self.table = nn.Parameter(torch.randn(has.shape[1], d) * 0.01)
        self.action, self.target = nn.Parameter(torch.randn(len(ACTIONS), d) * 0.02), nn.Parameter(torch.randn(1, d) * 0.02)
        self.position = nn.Parameter(torch.randn(positions, d) * 0.1)
        self.layers = nn.ModuleList(STU(d, heads, d // heads, d // heads) for _ in range(layers))
        self.post_w, self.post_b = nn.Parameter(torch.ones(d)), nn.Parameter(torch.zeros(d))
        # The head begins as the product of state and item, by which retrieval scores: one unit for each sign.
        head1, head2 = 0.3 * torch.randn(hidden, d) / d**0.5, torch.zeros(1, hidden)
        head1[0], head1[1], head2[0, 0], head2[0, 1] = 1, -1, 1, -1
        self.head1, self.bias1 = nn.Parameter(head1), nn.Parameter(torch.zeros(hidden))
        self.head_w, self.head_b = nn.Parameter(torch.ones(hidden)), nn.Parameter(torch.zeros(hidden))
        self.head2, self.bias2 = nn.Parameter(head2), nn.Parameter(torch.zeros(1))

    def items(self):
        """Returns the table: items, then marks."""
        shared = self.has @ self.table.to(self.has.dtype)
        return torch.cat((self.free[: self.count] + shared, self.free[self.count :]))

    def rows(self, items, history, stars, candidates, order, dtype):
        """Returns rows and their positions; the history is padded behind its end."""
        bits = torch.stack([(stars & w != 0) for w in ACTIONS], -1).to(items.dtype)
        past = F.embedding(history, items) + bits @ self.action
        offered = F.embedding(candidates, items) + self.target
        return past, offered

    def forward(self, items, history, stars, lengths, candidates, order, dtype):
        """Returns the states of the history (user-first) and of the candidates that are scored, postprocessed."""
        past, offered = self.rows(items, history, stars, candidates, order, dtype)
        b, n, _ = past.shape
        k = offered.shape[1]
        dev = past.device
        at, real = torch.arange(n, device=dev), torch.arange(n, device=dev)[None] < lengths[:, None]
        causal = (at[None, :, None] >= at[None, None, :]) & real[:, None, :]
        own = torch.eye(k, dtype=torch.bool, device=dev)[None].expand(b, -1, -1)
        none = torch.zeros((b, n, k), dtype=torch.bool, device=dev)
        history_seen = real[:, None, :].expand(-1, k, -1)
        if order == "user":
            x = torch.cat((past, offered), 1)
            positions = torch.cat((at[None].expand(b, -1), lengths[:, None].expand(-1, k)), 1)
            mask = torch.cat((torch.cat((causal, none), 2), torch.cat((history_seen, own), 2)), 1)
        else:
            x = torch.cat((offered, past, offered), 1)
            zeros = torch.zeros((b, k), dtype=torch.long, device=dev)
            positions = torch.cat((zeros, 1 + at[None].expand(b, -1), 1 + lengths[:, None].expand(-1, k)), 1)
            empty = torch.zeros((b, k, n), dtype=torch.bool, device=dev)
            other = torch.zeros((b, k, k), dtype=torch.bool, device=dev)
            first = torch.cat((own, empty, other), 2)
            middle = torch.cat((~none, causal, none), 2)
            last = torch.cat((own, history_seen, own), 2)
            mask = torch.cat((first, middle, last), 1)
        x = (self.d**0.5 * x + F.embedding(positions.clamp(max=self.positions - 1), self.position)).to(dtype)
        mask = mask.to(dtype)
        for layer in self.layers:
            x = layer(x, mask, self.scale)
        x = F.layer_norm(x, (self.d,), self.post_w.to(dtype), self.post_b.to(dtype), 1e-5)
        return (x[:, :n] if order == "user" else None), x[:, -k:]

    def predict(self, items, states, candidates):
        """Returns the logits of the task."""
        y = states * F.embedding(candidates, items).to(states.dtype)
        y = y @ self.head1.to(y.dtype).T + self.bias1.to(y.dtype)
        y = y * torch.sigmoid(F.layer_norm(y, (self.hidden,), self.head_w.to(y.dtype), self.head_b.to(y.dtype), 1e-5))
        return (y @ self.head2.to(y.dtype).T + self.bias2.to(y.dtype))[..., 0].float()

    def save(self, folder, ids):
        os.makedirs(folder, exist_ok=True)
        e, t, i = "_embedding_collection.embeddings.item_id.weight", "_hstu_transducer.", "_hstu_transducer._input_preprocessor."
        out = {
            e: self.items(), i + "_action_encoder._action_embedding_table": self.action,
            i + "_action_encoder._target_action_embedding_table": self.target,
            t + "_positional_encoder._position_embeddings_weight": self.position,
            t + "_output_postprocessor._layer_norm.weight": self.post_w, t + "_output_postprocessor._layer_norm.bias": self.post_b,
        }
        for n, layer in enumerate(self.layers):
            s = f"{t}_stu_module._stu_layers.{n}."
            out.update({
                s + "_input_norm_weight": layer.norm_w, s + "_input_norm_bias": layer.norm_b, s + "_uvqk_weight": layer.uvqk,
                s + "_uvqk_beta": layer.beta, s + "_output_norm_weight": layer.out_w, s + "_output_norm_bias": layer.out_b,
                s + "_output_weight": layer.out,
            })
        m = "_multitask_module._prediction_module."
        out.update({
            m + "0.weight": self.head1, m + "0.bias": self.bias1, m + "1.weight": self.head_w, m + "1.bias": self.head_b,
            m + "2.weight": self.head2, m + "2.bias": self.bias2,
        })
        save_bf16(os.path.join(folder, "model.safetensors"), out)
        config = {
            "architectures": ["HSTU"], "hstu_transducer_embedding_dim": self.d, "hstu_attn_num_layers": len(self.layers),
            "hstu_num_heads": self.heads, "hstu_attn_qk_dim": self.d // self.heads, "hstu_attn_linear_dim": self.d // self.heads,
            "attn_scale_length": self.scale, "max_seq_len": self.positions, "position_encoding": "absolute",
            "num_position_buckets": self.positions, "time_encoding": "none", "num_items": len(ids), "hstu_embedding_table_dim": self.d,
            "action_weights": list(ACTIONS), "postprocessor": "layer_norm", "multitask_hidden_dim": self.hidden,
            "multitask_configs": [{"task_name": "take", "task_type": 0, "task_weight": 1.0}], "retrieval": True,
        }
        with open(os.path.join(folder, "config.json"), "w") as f:
            json.dump(config, f, indent=2)
            f.write("\n")
        with open(os.path.join(folder, "items.json"), "w") as f:
            json.dump(ids, f, separators=(",", ":"))

    @torch.no_grad()
    def round(self):
        self.free.copy_(self.items())
        self.table.zero_()
        for p in self.parameters():
            p.copy_(p.to(torch.bfloat16).float())


class Arrays:
    """A split's streams, padded, on the device."""

    def __init__(self, split, count, marks, device):
        stream, ends = split.stream.astype(np.int64), split.rows
        stars = np.zeros(len(stream), dtype=np.int8)
        stars[stream < count] = split.stars
        if not marks:
            kept = stream < count
            stream, stars, ends = stream[kept], stars[kept], split.events
        n = np.diff(ends)
        width = int(n.max())
        history, given = np.zeros((len(n), width), dtype=np.int16), np.zeros((len(n), width), dtype=np.int8)
        inside = np.arange(width)[None] < n[:, None]
        history[inside], given[inside] = stream, stars

        def put(x):
            return torch.from_numpy(x).to(device)

        self.history, self.stars, self.lengths = put(history), put(given), put(n)
        self.offers, self.chosen = put(split.offers.astype(np.int16)), put(split.chosen.astype(np.int64))
        self.next = put(split.next.astype(np.int64))
        self.p = None if split.p is None else put(split.p)
        self.who = torch.arange(len(n), device=device)
        if split.middle[0] is not None:
            self.add_middle(split, stream, ends, count, put)
        self.order = torch.argsort(self.lengths)

    def add_middle(self, split, stream, ends, count, put):
        """Adds the questions in the middle of histories: as if each were another customer with fewer rows."""
        users, event, offers, chosen = split.middle
        place = np.flatnonzero(stream < count)[split.events[users] + event]  # the row of the purchase that is asked about
        self.who = torch.cat((self.who, put(users.astype(np.int64))))
        self.lengths = torch.cat((self.lengths, put((place - ends[users]).astype(np.int64))))
        self.offers = torch.cat((self.offers, put(offers.astype(np.int16))))
        self.chosen = torch.cat((self.chosen, put(chosen.astype(np.int64))))
        self.next = torch.cat((self.next, put(stream[place])))
        kept = (self.lengths > 0).nonzero()[:, 0]
        for k in ("who", "lengths", "offers", "chosen", "next"):
            setattr(self, k, getattr(self, k)[kept])

    def batch(self, users):
        n = self.lengths[users]
        width = int(n.max())
        who = self.who[users]
        return {
            "history": self.history[who, :width].long(), "stars": self.stars[who, :width].long(), "lengths": n,
            "offers": self.offers[users].long(), "chosen": self.chosen[users], "next": self.next[users], "users": users,
        }


def costs(model, b, order, listed, dtype, generator):
    items = model.items()
    k = b["offers"].shape[1]
    places = torch.rand(b["offers"].shape, device=b["offers"].device, generator=generator)
    places[torch.arange(len(places), device=places.device), b["chosen"]] = 2.0
    places = places.topk(min(listed, k), dim=1).indices  # the chosen one is first
    candidates = torch.gather(b["offers"], 1, places)
    past, states = model(items, b["history"], b["stars"], b["lengths"], candidates, order, dtype)
    logits = model.predict(items, states, candidates)
    out = {order: F.cross_entropy(logits, torch.zeros(len(logits), dtype=torch.long, device=logits.device))}
    truth = torch.zeros_like(logits)
    truth[:, 0] = 1
    out[order + "_yes"] = 0.2 * F.binary_cross_entropy_with_logits(logits, truth)
    if past is not None:
        following = torch.cat((b["history"][:, 1:], b["next"][:, None]), 1)
        at = torch.arange(following.shape[1], device=following.device)[None]
        following = torch.where(at == b["lengths"][:, None] - 1, b["next"][:, None], following)
        real = (at < b["lengths"][:, None]) & (following < model.count)
        out["next"] = F.cross_entropy((past[real] @ items[: model.count].to(dtype).T).float(), following[real])
    return out


@torch.no_grad()
def validate(model, arrays, most, dtype):
    out = {}
    items = model.items()
    for order in ("user", "item"):
        got = best = hits = 0.0
        for users in arrays.order[arrays.order < most].split(64):
            b = arrays.batch(users)
            past, states = model(items, b["history"], b["stars"], b["lengths"], b["offers"], order, dtype)
            p = arrays.p[users]
            p = p / p.sum(1, keepdim=True)
            got += ndcg(model.predict(items, states, b["offers"]), p)
            best += ndcg(p, p)
            if past is not None:
                last = past[torch.arange(len(users), device=past.device), b["lengths"] - 1]
                scores = (last @ items.to(dtype).T).float()
                scores[:, model.count :] = float("-inf")
                at = torch.arange(b["history"].shape[1], device=past.device)[None] < b["lengths"][:, None]
                rows = torch.arange(len(users), device=past.device)[:, None].expand_as(at)[at]
                scores[rows, b["history"][at]] = float("-inf")
                hits += float((scores.topk(10, 1).indices == b["next"][:, None]).sum())
        out[order] = round(got / best, 4)
        if order == "user":
            out["recall@10"] = round(hits / most, 4)
    return out


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--data", required=True)
    p.add_argument("--out", required=True)
    p.add_argument("--seconds", type=float, default=60)
    p.add_argument("--steps", type=int, default=0)
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--marks", type=int, default=1, help="whether streams have more than purchases")
    p.add_argument("--width", type=int, default=192)
    p.add_argument("--layers", type=int, default=4)
    p.add_argument("--heads", type=int, default=6)
    p.add_argument("--hidden", type=int, default=128)
    p.add_argument("--users", type=int, default=256, help="users of a batch")
    p.add_argument("--listed", type=int, default=32)
    p.add_argument("--matrices", type=float, default=0.01)
    p.add_argument("--others", type=float, default=0.003)
    p.add_argument("--validate", type=int, default=1000)
    a = p.parse_args()
    seed_all(a.seed)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    world = World(a.data)
    names = world.meta["marks"] if a.marks else []
    train, valid = (Arrays(Split(a.data, name), world.count, a.marks, device) for name in ("train", "validation"))
    model = HSTU(world.count, len(names), a.width, a.layers, a.heads, 256, 64, a.hidden, world.features()).to(device)
    inner = [q for layer in model.layers for q in (layer.uvqk, layer.out)]
    known = {id(q) for q in inner}
    extra = {"fused": True} if device.type == "cuda" else {}
    optimizers = [
        Muon(inner, lr=a.matrices),
        torch.optim.AdamW([q for q in model.parameters() if id(q) not in known], lr=a.others, betas=(0.9, 0.98), weight_decay=0.0, **extra),
    ]
    rates = [[g["lr"] for g in o.param_groups] for o in optimizers]
    clock, sums, log, report = Clock(a.seconds, a.steps), {}, [], 0.05
    generator = torch.Generator(device=device).manual_seed(a.seed)
    while clock.done() < 1:
        # Customers of about the same number of purchases: a window of the order of lengths.
        start = int(torch.randint(0, max(1, len(train.order) - a.users), (1,)))
        window = train.order[start : start + 4 * a.users]
        users = window[torch.randperm(len(window), device=device, generator=generator)[: a.users]]
        order = "user" if clock.step % 2 == 0 else "item"
        c = costs(model, train.batch(users), order, a.listed, dtype, generator)
        sum(c.values()).backward()
        share = rate(clock.done())
        for o, old in zip(optimizers, rates):
            for g, lr in zip(o.param_groups, old):
                g["lr"] = lr * share
            o.step()
            o.zero_grad(set_to_none=True)
        clock.step += 1
        for k, v in c.items():
            total, n = sums.get(k, (0.0, 0))
            sums[k] = (total + v.detach(), n + 1)
        if clock.done() > report:
            line = {"seconds": round(time.time() - clock.start, 1), "step": clock.step}
            line.update({k: round(float(t) / n, 4) for k, (t, n) in sums.items()})
            print("hstu", json.dumps(line), flush=True)
            log.append(line)
            sums, report = {}, clock.done() + 0.05
    model.round()
    result = validate(model, valid, min(a.validate, len(valid.lengths)), dtype)
    result["step"] = clock.step
    print("hstu validation", json.dumps(result), flush=True)
    with open(os.path.join(a.data, "items.ndjson")) as f:
        model.save(a.out, [json.loads(line)["id"] for line in f] + names)
    with open(os.path.join(a.out, "log.json"), "w") as f:
        for line in log + [{"validation": result, "settings": vars(a)}]:
            f.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()

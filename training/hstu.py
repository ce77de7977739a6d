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
NAMES = {
    "norm_w": "_input_norm_weight", "norm_b": "_input_norm_bias", "uvqk": "_uvqk_weight", "beta": "_uvqk_beta",
    "out_w": "_output_norm_weight", "out_b": "_output_norm_bias", "out": "_output_weight",
}


def waves(positions, d, longest=512.0, size=0.3):
    """Begins the positions as sines and cosines, of which products tell distances: how long ago something was counts here."""
    speed = longest ** (-torch.arange(d // 2).float() / (d // 2))
    angle = torch.arange(positions).float()[:, None] * speed[None]
    return size * torch.cat((angle.sin(), angle.cos()), 1)


class HSTU(nn.Module):
    """The weights of all layers are stacked: few tensors make few launches."""

    def __init__(self, items, marks, d, layers, heads, positions, scale, hidden, features):
        super().__init__()
        self.count = items
        self.d, self.positions, self.scale, self.heads, self.hidden, self.depth = d, positions, scale, heads, hidden, layers
        self.free = nn.Parameter(torch.randn(items + marks, d) * 0.02)
        has = incidence(features)
        self.register_buffer("has", has)
        self.table = nn.Parameter(torch.randn(has.shape[1], d) * 0.01)
        self.action, self.target = nn.Parameter(torch.randn(len(ACTIONS), d) * 0.02), nn.Parameter(torch.randn(1, d) * 0.02)
        self.position = nn.Parameter(waves(positions, d))
        self.norm_w, self.norm_b = nn.Parameter(torch.ones(layers, d)), nn.Parameter(torch.zeros(layers, d))
        self.uvqk, self.beta = nn.Parameter(torch.randn(layers, d, 4 * d) / d**0.5), nn.Parameter(torch.zeros(layers, 4 * d))
        self.out_w, self.out_b = nn.Parameter(torch.ones(layers, d)), nn.Parameter(torch.zeros(layers, d))
        self.out = nn.Parameter(torch.randn(layers, 3 * d, d) * 0.02)
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

    def forward(self, items, history, stars, seen, candidates, order, dtype):
        """Returns the states of the history (user-first) and of the candidates that are scored, postprocessed.

        history [batch, rows] is padded behind its end; seen [batch, questions] are the rows that each question
        is asked behind; candidates [batch, questions, each]. Item-first there is one question: the history sees
        its candidates."""
        b, n = history.shape
        questions, k = candidates.shape[1:]
        dev = history.device
        bits = torch.stack([(stars & w != 0) for w in ACTIONS], -1).to(items.dtype)
        first = int(order == "item")
        at = torch.arange(n, device=dev)
        past = self.begin(F.embedding(history, items) + bits @ self.action, at + first, dtype)
        content = F.embedding(candidates.reshape(b, -1), items) + self.target
        places = seen[:, :, None].expand(-1, -1, k).reshape(b, -1)
        offered = self.begin(content, places + first, dtype)
        prefix = self.begin(content, torch.zeros_like(places), dtype) if first else None
        causal = (at[:, None] >= at[None, :]).to(dtype)[None, None] / self.scale
        sees = (at[None, None] < places[:, :, None]).to(dtype)[:, None] / self.scale
        stacked = [w.to(dtype).unbind(0) for w in (self.norm_w, self.norm_b, self.uvqk, self.beta, self.out_w, self.out_b, self.out)]
        for weights in zip(*stacked):
            past, offered, prefix = self.layer(weights, past, offered, prefix, causal, sees)
        past, offered = (
            F.layer_norm(x, (self.d,), self.post_w.to(dtype), self.post_b.to(dtype), 1e-5) for x in (past, offered)
        )
        return (past if order == "user" else None), offered.reshape(b, questions, k, self.d)

    def begin(self, content, places, dtype):
        return (self.d**0.5 * content + F.embedding(places.clamp(max=self.positions - 1), self.position)).to(dtype)

    def layer(self, weights, past, offered, prefix, causal, sees):
        """One layer. Candidates see the history before their question and themselves, never each other, so what
        they see is computed by parts; no mask of all rows is made."""
        norm_w, norm_b, uvqk, beta, out_w, out_b, out = weights
        parts = [past, offered] if prefix is None else [past, offered, prefix]
        sizes = [x.shape[1] for x in parts]
        x = torch.cat(parts, 1)
        b, rows, d = x.shape
        y = F.layer_norm(x, (d,), norm_w, norm_b, 1e-6) @ uvqk + beta
        u, v, q, k = y.split(d, dim=-1)
        v, q, k = (t.reshape(b, rows, self.heads, -1).transpose(1, 2).split(sizes, 2) for t in (v, q, k))
        sharp = (d // self.heads) ** -0.5
        of_past = (F.silu(q[0] @ k[0].transpose(-1, -2) * sharp) * causal) @ v[0]
        of_offered = (F.silu(q[1] @ k[0].transpose(-1, -2) * sharp) * sees) @ v[0] + self.own(q[1], k[1], sharp) * v[1]
        got = [of_past, of_offered]
        if prefix is not None:
            got[0] = of_past + (F.silu(q[0] @ k[2].transpose(-1, -2) * sharp) / self.scale) @ v[2]
            got[1] = of_offered + self.own(q[1], k[2], sharp) * v[2]
            got.append(self.own(q[2], k[2], sharp) * v[2])
        got = torch.cat(got, 2).transpose(1, 2).reshape(b, rows, d)
        u = F.silu(u)
        normed = F.layer_norm(got, (d,), out_w, out_b, 1e-6)
        x = x + torch.cat((u, got, u * normed), -1) @ out
        parts = list(x.split(sizes, 1))
        return parts if prefix is not None else parts + [None]

    def own(self, q, k, sharp):
        """How much rows see the one of the same place."""
        return F.silu((q * k).sum(-1, keepdim=True) * sharp) / self.scale

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
        for n in range(self.depth):
            s = f"{t}_stu_module._stu_layers.{n}."
            out.update({s + name: getattr(self, key)[n] for key, name in NAMES.items()})
        m = "_multitask_module._prediction_module."
        out.update({
            m + "0.weight": self.head1, m + "0.bias": self.bias1, m + "1.weight": self.head_w, m + "1.bias": self.head_b,
            m + "2.weight": self.head2, m + "2.bias": self.bias2,
        })
        save_bf16(os.path.join(folder, "model.safetensors"), out)
        config = {
            "architectures": ["HSTU"], "hstu_transducer_embedding_dim": self.d, "hstu_attn_num_layers": self.depth,
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
    """A split's streams, padded, and its questions, on the device."""

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
        self.next = put(split.next.astype(np.int64))
        self.p = None if split.p is None else put(split.p)
        seen, offers, chosen = self.questions(split, stream, ends, count)
        self.seen, self.offers, self.chosen = put(seen), put(offers), put(chosen)
        self.order = torch.argsort(self.lengths)

    def questions(self, split, stream, ends, count):
        """Returns of each customer's questions the rows they are asked behind, what is offered and what is taken. The last
        one is that at the end; those in the middle of the history come before it, and where there are fewer, seen is 0."""
        users = split.middle[0] if split.middle[0] is not None else np.zeros(0, dtype=np.int32)
        place = np.arange(len(users)) - np.searchsorted(users, users)  # which of their customer's
        most = int(place.max()) + 1 if len(users) else 0
        n, width = len(ends) - 1, split.offers.shape[1]
        seen, chosen = np.zeros((n, most + 1), dtype=np.int64), np.zeros((n, most + 1), dtype=np.int64)
        offers = np.zeros((n, most + 1, width), dtype=np.int16)
        seen[:, most], chosen[:, most], offers[:, most] = np.diff(ends), split.chosen, split.offers
        if len(users):
            _, event, offered, taken = split.middle
            row = np.flatnonzero(stream < count)[split.events[users] + event]  # of the purchase that is asked about
            seen[users, place], chosen[users, place], offers[users, place] = row - ends[users], taken, offered
        return seen, offers, chosen

    def batch(self, users, one=None):
        """Returns customers with all their questions or, where one is given, with that one and the rows before it."""
        seen, offers, chosen = self.seen[users], self.offers[users], self.chosen[users]
        if one is not None:
            row = torch.arange(len(users), device=users.device)
            one = torch.where(seen[row, one] > 0, one, seen.shape[1] - 1)
            seen, offers, chosen = seen[row, one][:, None], offers[row, one][:, None], chosen[row, one][:, None]
        width = int(seen.max())
        return {
            "history": self.history[users, :width].long(), "stars": self.stars[users, :width].long(), "lengths": self.lengths[users],
            "seen": seen, "offers": offers.long(), "chosen": chosen, "next": self.next[users],
        }


def costs(model, b, order, listed, dtype, generator):
    items = model.items()
    k = b["offers"].shape[2]
    places = torch.rand(b["offers"].shape, device=b["offers"].device, generator=generator)
    places.scatter_(2, b["chosen"][:, :, None], 2.0)
    places = places.topk(min(listed, k), dim=2).indices  # the chosen one is first
    candidates = torch.gather(b["offers"], 2, places)
    past, states = model(items, b["history"], b["stars"], b["seen"], candidates, order, dtype)
    asked = b["seen"] > 0
    logits = model.predict(items, states[asked], candidates[asked])
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
    """NDCG@10 in expectation, as a share of the optimum's, in both orders, and by the product of state and item (retrieval's
    scores); the share of customers whose next purchase is among the ten that retrieval names."""
    out, items = {}, model.items()
    total = {"user": 0.0, "item": 0.0, "product": 0.0, "best": 0.0, "hits": 0.0}
    for users in arrays.order[arrays.order < most].split(64):
        b = arrays.batch(users)
        p = arrays.p[users]
        p = p / p.sum(1, keepdim=True)
        total["best"] += ndcg(p, p)
        for order in ("user", "item"):
            past, states = model(items, b["history"], b["stars"], b["seen"], b["offers"], order, dtype)
            total[order] += ndcg(model.predict(items, states, b["offers"])[:, 0], p)
            if past is None:
                continue
            scores = (past[torch.arange(len(users), device=past.device), b["lengths"] - 1] @ items.to(dtype).T).float()
            total["product"] += ndcg(scores.gather(1, b["offers"][:, 0]), p)
            scores[:, model.count :] = float("-inf")
            at = torch.arange(b["history"].shape[1], device=past.device)[None] < b["lengths"][:, None]
            rows = torch.arange(len(users), device=past.device)[:, None].expand_as(at)[at]
            scores[rows, b["history"][at]] = float("-inf")
            total["hits"] += float((scores.topk(10, 1).indices == b["next"][:, None]).sum())
    out.update({k: round(total[k] / total["best"], 4) for k in ("user", "item", "product")})
    out["recall@10"] = round(total["hits"] / most, 4)
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
    p.add_argument("--listed", type=int, default=32, help="candidates of each question, user-first")
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
    inner = [model.uvqk, model.out]
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
        if clock.step % 2 == 0:
            c = costs(model, train.batch(users), "user", a.listed, dtype, generator)
        else:
            # The history sees the candidates, and sums over them: their number matters, so it is that of real lists, or less.
            one = torch.randint(0, train.seen.shape[1], (len(users),), device=device, generator=generator)
            listed = (100, 64, 100, 32)[clock.step // 2 % 4]
            c = costs(model, train.batch(users, one), "item", listed, dtype, generator)
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

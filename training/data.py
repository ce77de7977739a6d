"""Customers as arrays (grebe eval world --arrays), and batches of plans made of them.

Batches are made by worker processes in NumPy: tokens, positions and segments of many plans side by
side, who sees whom, and the rows that answer. Nothing here knows a model."""

import json
import os

import numpy as np
import torch

from plans import Plan, Prompts


class Split:
    """The customers of a split."""

    def __init__(self, folder, name):
        def load(key):
            path = os.path.join(folder, f"{name}.{key}.npy")
            return np.load(path) if os.path.exists(path) else None

        self.tokens, self.offsets, self.events = load("tokens"), load("offsets"), load("events")
        self.cuts, self.items, self.stars, self.times = load("cuts"), load("items"), load("stars"), load("times")
        self.middle = [load(f"middle_{k}") for k in ("user", "event", "offers", "chosen")]
        self.stream, self.rows = load("stream"), load("rows")
        self.offers, self.chosen, self.next, self.p = load("offers"), load("chosen"), load("next"), load("p")

    def __len__(self):
        return len(self.offsets) - 1

    def lengths(self):
        return np.diff(self.offsets)

    def chunks(self, u):
        """Returns the text of a customer cut before the line of each purchase."""
        text = self.tokens[self.offsets[u] : self.offsets[u + 1]]
        return np.split(text, self.cuts[self.events[u] : self.events[u + 1]])

    def targets(self, u):
        """Returns what was bought after each chunk."""
        return np.append(self.items[self.events[u] : self.events[u + 1]], self.next[u]).astype(np.int64)


class World:
    """meta.json and the items."""

    def __init__(self, folder):
        with open(os.path.join(folder, "meta.json")) as f:
            self.meta = json.load(f)
        self.folder = folder
        self.prompts = Prompts(self.meta["tokens"])
        self.first, self.count = self.meta["first_identifier"], self.meta["items"]
        tokens, offsets = np.load(os.path.join(folder, "items.tokens.npy")), np.load(os.path.join(folder, "items.offsets.npy"))
        self.items = [tokens[a:b] for a, b in zip(offsets[:-1], offsets[1:])]
        attributes = os.path.join(folder, "items.attributes.npy")
        self.attributes = np.load(attributes) if os.path.exists(attributes) else np.zeros((self.count, 0), dtype=np.uint16)

    def features(self):
        """Returns numbers of what items share: words of the title, the last words (a price's), attributes."""
        words = self.meta["words"]
        width = max(len(t) for t in self.items)
        out = np.full((self.count, width + 3 + self.attributes.shape[1]), -1, dtype=np.int64)
        for i, t in enumerate(self.items):
            plain = t[t < words].astype(np.int64)[:-1]  # without the end of the line
            out[i, : len(plain)] = plain
            for k in range(min(3, len(plain))):
                out[i, width + k] = (k + 1) * words + plain[-1 - k]
        base = 4 * words
        for k in range(self.attributes.shape[1]):
            out[:, width + 3 + k] = base + self.attributes[:, k]
            base += int(self.attributes[:, k].max()) + 1
        return torch.from_numpy(out)


class Histories(torch.utils.data.IterableDataset):
    """Batches of plain causal histories: preamble and customer, with what was bought after each chunk."""

    def __init__(self, world, split, rows, seed):
        self.world, self.split, self.rows, self.seed = world, split, rows, seed

    def __iter__(self):
        r = np.random.default_rng((self.seed, worker()))
        while True:
            for users in batches(r, self.split.lengths() + len(self.world.prompts.preamble), self.rows):
                yield self.batch(users)

    def batch(self, users):
        s, head = self.split, np.asarray(self.world.prompts.preamble)
        width = pad(max(s.lengths()[users]) + len(head))
        tokens = np.zeros((len(users), width), dtype=np.int32)
        rows, items = [], []
        for b, u in enumerate(users):
            text = np.concatenate((head, s.tokens[s.offsets[u] : s.offsets[u + 1]]))
            tokens[b, : len(text)] = text
            cuts = np.append(s.cuts[s.events[u] : s.events[u + 1]] + len(head), len(text))
            rows.append(b * width + cuts - 1)
            items.append(s.targets(u))
        return {"tokens": tensor(tokens), "dense_rows": tensor(np.concatenate(rows)), "dense_items": tensor(np.concatenate(items))}


class Questions(torch.utils.data.IterableDataset):
    """Batches of plans with all questions: ranking, pointwise, generation, and what was bought after each chunk.

    codes are the tokens of each item's codes, or None. listed candidates of each list are shown, asked of
    them pointwise; generated places of each customer get a generation (not item-first, where what a generation
    sees of the user is something else)."""

    def __init__(self, world, split, rows, seed, codes, listed=32, asked=16, generated=8, orders=("user", "item")):
        self.world, self.split, self.rows, self.seed, self.codes = world, split, rows, seed, codes
        self.listed, self.asked, self.generated, self.orders = listed, asked, generated, orders
        self.each = 16 * listed + 8 * asked + 8 * generated  # rows beside the user's, about

    def __iter__(self):
        r = np.random.default_rng((self.seed, worker()))
        while True:
            for users in batches(r, self.split.lengths() + self.each, self.rows):
                order = self.orders[r.integers(len(self.orders))]
                if order == "causal" and r.integers(2) == 0:  # positions as far out as the server's
                    users = users[: max(1, len(users) // 2)]
                    yield self.batch(r, users, order, self.split.offers.shape[1])
                else:
                    yield self.batch(r, users, order)

    def batch(self, r, users, order, listed=None):
        """Lays the plans of customers side by side. The rows before `split` are the users' (user-first, causal) or
        the items' (item-first): nothing before it sees anything behind it."""
        plans = [self.plan(r, u, order, listed or self.listed) for u in users]
        split = pad(max(x["split"] for x in plans))
        width = split + pad(max(x["plan"].size - x["split"] for x in plans))
        segments = max(len(x["plan"].tokens) for x in plans) + 1
        n = len(users)
        out = {k: np.zeros((n, width), dtype=np.int32) for k in ("tokens", "positions", "segments")}
        out["segments"] += segments - 1  # padding: a segment that nobody sees
        seen = np.zeros((n, segments, segments), dtype=bool)
        rows = {k: [] for k in ("dense_rows", "generated_rows", "answer_rows", "asked_rows")}
        for b, x in enumerate(plans):
            p, cut = x["plan"], x["split"]
            for k, values in zip(("tokens", "segments", "positions"), p.rows()):
                out[k][b, :cut], out[k][b, split : split + p.size - cut] = values[:cut], values[cut:]
            seen[b, : len(p.tokens), : len(p.tokens)] = p.seen()
            for k, lists in rows.items():
                lists.append(b * width + np.where(x[k] < cut, x[k], x[k] - cut + split))
        out.update({k: np.concatenate(v) for k, v in rows.items() if k != "asked_rows"}, asked_rows=np.array(rows["asked_rows"]), seen=seen)
        for k in ("dense_items", "generated_items"):
            out[k] = np.concatenate([x[k] for x in plans])
        for k in ("candidates", "chosen", "asked_chosen", "next", "asked"):
            out[k] = np.array([x[k] for x in plans])
        batch = {k: tensor(v) for k, v in out.items()}
        batch.update(order=order, split=split, users=tensor(np.asarray(users)))
        return batch

    def plan(self, r, u, order, listed):
        s, w = self.split, self.world
        candidates, chosen = self.choose(r, u, listed)
        asked, asked_chosen = ([], -1) if order == "causal" or self.asked == 0 else pick(r, len(candidates), chosen, self.asked)
        chunks, targets = s.chunks(u), s.targets(u)
        p, user, instruction, each = w.prompts.questions(order, chunks, [w.items[i] for i in candidates], asked)
        rows, items = [], []
        if order != "item" and self.codes is not None:
            places = r.permutation(len(chunks) - 1)[: self.generated - 1]
            for k in np.append(places, len(chunks) - 1):
                rows.append(w.prompts.generation(p, user, k, self.codes[targets[k]]))
                items.append(targets[k])
        return {
            "plan": p, "dense_rows": np.array([p.last_row(x) for x in user]), "dense_items": targets,
            "split": p.first[user[0] if order == "item" else user[-1] + 1],
            "answer_rows": np.array([p.last_row(instruction)]), "candidates": candidates, "chosen": chosen, "next": int(s.next[u]),
            "asked_rows": np.array([p.last_row(x) for x in each], dtype=np.int64), "asked_chosen": asked_chosen, "asked": np.asarray(asked),
            "generated_rows": np.array(rows, dtype=np.int64).reshape(-1, 3 if self.codes is None else self.codes.shape[1]),
            "generated_items": np.array(items, dtype=np.int64),
        }

    def choose(self, r, u, listed):
        places, chosen = pick(r, self.split.offers.shape[1], int(self.split.chosen[u]), listed)
        return self.split.offers[u][places].astype(np.int64), chosen


def pick(r, n, must, k):
    """Draws k of n places with must among them, in order; returns them and where must is."""
    if k >= n:
        return np.arange(n), must
    others = np.delete(np.arange(n), must)
    places = np.sort(np.append(r.choice(others, k - 1, replace=False), must))
    return places, int(np.searchsorted(places, must))


def worker():
    info = torch.utils.data.get_worker_info()
    return 0 if info is None else info.id


def batches(r, lengths, rows):
    """Yields lists of customers of about the same length, each of at most so many rows; all once."""
    order = r.permutation(len(lengths))
    for pool in np.array_split(order, max(1, len(order) // 1024)):
        pool = pool[np.argsort(lengths[pool], kind="stable")]
        out, start = [], 0
        for i in range(len(pool)):
            if pad(lengths[pool[i]]) * (i + 1 - start) > rows and i > start:
                out.append(pool[start:i])
                start = i
        out.append(pool[start:])
        for i in r.permutation(len(out)):
            yield out[i]


def pad(n):
    return (int(n) + 63) // 64 * 64


def tensor(x):
    x = np.asarray(x)
    if x.dtype == np.int64 or x.dtype == np.uint16:
        return torch.from_numpy(x.astype(np.int64))
    return torch.from_numpy(np.ascontiguousarray(x))


def loader(dataset, workers, pin):
    extra = {"prefetch_factor": 4} if workers > 0 else {}
    return iter(torch.utils.data.DataLoader(dataset, batch_size=None, num_workers=workers, pin_memory=pin, **extra))


def to_device(batch, device):
    return {k: v.to(device, non_blocking=True) if torch.is_tensor(v) else v for k, v in batch.items()}


__all__ = ["Histories", "Plan", "Questions", "Split", "World", "loader", "to_device"]

"""The same recipe on Amazon Beauty (22,363 people, 12,101 items): sequences of purchases, no reviews.

    python3 beauty.py --data ../../shared/data/beauty --out beauty --seconds 60

A history is a list of identifiers; embeddings of items share what their titles' words have in common. The
last purchase of each person is the test, the one before it chooses when to stop. Again the model first
learns what is bought next, its item vectors become semantic IDs, and then it learns to generate them and to
rank lists. Metrics are over all items, without those already bought.
"""

import argparse
import json
import os
import re
import time

import numpy as np
import torch
import torch.nn.functional as F

import codes as semantic
from decoder import Decoder, Shape, seed_all
from lm import Clock

LEVELS = (128, 128, 64)
LONGEST = 50
BYTES = 256
START, NEXT, TAKE = BYTES, BYTES + 1, BYTES + 2
FIRST = BYTES + 3  # the identifier of the first item


class Data:
    def __init__(self, folder):
        with open(os.path.join(folder, "Beauty.txt")) as f:
            self.people = [np.array(line.split()[1:], dtype=np.int64) - 1 for line in f]
        with open(os.path.join(folder, "beauty_joined.tsv")) as f:
            next(f)
            rows = [line.rstrip("\n").split("\t") for line in f]
        self.ids, self.titles = [r[1] for r in rows], [r[2] for r in rows]
        self.count = len(rows)
        self.first_code = [FIRST + self.count + sum(LEVELS[:k]) for k in range(len(LEVELS))]
        self.vocabulary = FIRST + self.count + sum(LEVELS)

    def features(self, least=3, most=24):
        """Numbers of the words of each title that other titles have too."""
        words = [sorted(set(re.findall(r"[a-z0-9]+", t.lower()))) for t in self.titles]
        count = {}
        for ws in words:
            for w in ws:
                count[w] = count.get(w, 0) + 1
        known = {w: i for i, w in enumerate(sorted(w for w, c in count.items() if c >= least))}
        out = np.full((self.count, most), -1, dtype=np.int64)
        for i, ws in enumerate(words):
            ws = sorted((w for w in ws if w in known), key=lambda w: count[w])[:most]
            out[i, : len(ws)] = [known[w] for w in ws]
        return torch.from_numpy(out)

    def histories(self, leave, device):
        """Returns histories without the last `leave` purchases, padded behind, their lengths, and the next one."""
        lists = [p[: len(p) - leave][-LONGEST:] for p in self.people]
        out = np.zeros((len(lists), LONGEST), dtype=np.int64)
        for i, p in enumerate(lists):
            out[i, : len(p)] = p
        following = np.array([p[len(p) - leave] for p in self.people])
        lengths = np.array([len(p) for p in lists])
        return tuple(torch.from_numpy(x).to(device) for x in (out, lengths, following))

    def bought(self, leave, device):
        """Returns (person, item) pairs of everything before the question."""
        who = np.concatenate([np.full(len(p) - leave, i) for i, p in enumerate(self.people)])
        what = np.concatenate([p[: len(p) - leave] for p in self.people])
        return torch.from_numpy(who).to(device), torch.from_numpy(what).to(device)


class Trainer:
    def __init__(self, a):
        seed_all(a.seed)
        self.a = a
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.dtype = torch.bfloat16 if self.device.type == "cuda" else torch.float32
        self.data = Data(a.data)
        shape = Shape(self.data.vocabulary, a.hidden, a.layers, a.heads, a.heads, a.inter, positions=1024)
        self.model = Decoder(shape, FIRST, self.data.features() if a.titles else None, a.dropout).to(self.device)
        self.optimizers = self.model.optimizers(a.matrices, a.others, a.decay)
        for g in self.optimizers[1].param_groups:
            g["weight_decay"] = a.decay
        self.rates = [[g["lr"] for g in o.param_groups] for o in self.optimizers]
        self.people, self.lengths, _ = self.data.histories(2, self.device)
        self.clock = Clock(a.seconds, a.steps)
        self.codes, self.log = None, []
        inside = torch.arange(LONGEST, device=self.device)[None] < self.lengths[:, None]
        counts = torch.bincount(self.people[inside], minlength=self.data.count)
        self.popular = counts.float().sqrt() + 0.5

    def start(self, history):
        """Returns the rows [start, items …]."""
        first = torch.full((len(history), 1), START, device=history.device)
        return torch.cat((first, history + FIRST), 1)

    def ids(self, embedding):
        return embedding[FIRST : FIRST + self.data.count].to(self.dtype)

    def batches(self):
        """Draws people and yields them in two parts, those with short histories and the others, so that little is padding:
        items, which of them are real, how many each has; and of how many purchases and people costs are a mean."""
        users = torch.randint(0, len(self.people), (self.a.users,), device=self.device)
        users = users[torch.argsort(self.lengths[users])]
        rows = int(self.lengths[users].sum())
        cut = self.a.users * 3 // 4
        for part in (users[:cut], users[cut:]):
            n = self.lengths[part]
            width = int(n.max())
            real = torch.arange(width, device=self.device)[None] < n[:, None]
            yield self.people[part, :width], real, n, rows, len(users)

    def causal(self, embedding, items):
        """The states before each purchase."""
        tokens = self.start(items[:, :-1])
        at = torch.arange(tokens.shape[1], device=self.device)[None].expand(len(tokens), -1)
        return self.model.last(self.model(embedding, tokens, at, None, self.dtype))

    def plain(self, items, real, n, rows, people):
        """Every purchase from those before it, over all items."""
        embedding = self.model.embedding()
        return {"next": self.over_all(self.causal(embedding, items)[real], embedding, items[real]) / rows}

    def over_all(self, states, embedding, truth):
        return F.cross_entropy((states @ self.ids(embedding).T).float(), truth, label_smoothing=self.a.smooth, reduction="sum")

    @torch.no_grad()
    def believed(self, items, real):
        """What the model itself thinks of every item before each purchase, without dropout: [purchases, items]."""
        self.model.eval()
        embedding = self.model.embedding()
        p = torch.softmax((self.causal(embedding, items)[real] @ self.ids(embedding).T).float(), -1)
        self.model.train()
        return p

    def full(self, items, real, n, rows, people):
        """The same; and after each purchase the codes of the next; and a list for the last one.

        Codes learn from what was bought and from what the model believes of all items by their identifiers (--teach).
        With that, paths to items that were not bought but might have been can be taught too (--spread)."""
        b, width = items.shape
        dev = self.device
        history, truth = self.start(items[:, :-1]), items[real]
        p = self.believed(items, real)
        drawn = torch.multinomial(p, 1)[:, 0]
        other = (torch.rand(len(truth), device=dev) < self.a.spread) & (drawn != truth)
        path = items.clone()
        path[real] = torch.where(other, drawn, truth)
        branch = torch.stack((torch.full_like(path, NEXT), self.codes[path, 0], self.codes[path, 1]), -1).reshape(b, -1)
        candidates, chance = self.shown(items, n, p[torch.cumsum(n, 0) - 1])
        take = torch.full((b, 1), TAKE, device=dev)
        tokens = torch.cat((history, branch, candidates + FIRST, take), 1)
        at = torch.arange(width, device=dev)[None].expand(b, -1)
        branch_at = (at[:, :, None] + 1 + torch.arange(3, device=dev)).reshape(b, -1)
        positions = torch.cat((at, branch_at, n[:, None].expand(-1, self.a.listed), n[:, None] + 1), 1)
        embedding = self.model.embedding()
        hidden = self.model.last(self.model(embedding, tokens, positions, self.mask(b, width, n), self.dtype))
        out = {"next": self.over_all(hidden[:, :width][real], embedding, truth) / rows}
        states = hidden[:, width : 4 * width].reshape(b, width, 3, -1)[real]
        for level, (logits, wanted) in enumerate(self.lessons(states, embedding, p, truth, path[real], other)):
            out[f"code{level}"] = -(wanted * torch.log_softmax(logits, -1)).sum() / rows
        out["take"] = 0.5 * self.over_all(hidden[:, -1], embedding, candidates[:, 0]) / people
        scores = torch.einsum("bh,bkh->bk", hidden[:, -1], embedding[FIRST + candidates].to(self.dtype)).float() - chance.log()
        same = candidates[:, 1:] == candidates[:, :1]
        scores = torch.cat((scores[:, :1], scores[:, 1:].masked_fill(same, float("-inf"))), 1)
        out["list"] = 0.5 * F.cross_entropy(scores, torch.zeros(b, dtype=torch.long, device=dev), reduction="sum") / people
        return out

    def shown(self, items, n, p):
        """Draws a list for the last purchase, which is its first: half by what the model believes, half by popularity. Returns
        it and how likely each was drawn, by which scores are corrected: else what is drawn often would seem unlikely."""
        q = 0.5 * p + 0.5 * self.popular / self.popular.sum()
        drawn = torch.multinomial(q, self.a.listed - 1, replacement=True)
        candidates = torch.cat((items.gather(1, (n - 1)[:, None]), drawn), 1)
        return candidates, q.gather(1, candidates).clamp(min=1e-9)

    def lessons(self, states, embedding, p, truth, path, other):
        """Yields for each level logits and the shares that codes should have."""
        a = self.a
        inside = p
        for level, (first, size) in enumerate(zip(self.data.first_code, LEVELS)):
            code = self.codes[:, level] - first
            logits = (states[:, level] @ embedding[first : first + size].to(self.dtype).T).float()
            bought = F.one_hot(code[truth], size).float()
            if a.teach == 0:
                yield logits, bought
                continue
            soft = (inside.to(self.dtype) @ F.one_hot(code, size).to(self.dtype)).float()
            soft = soft / soft.sum(1, keepdim=True).clamp(min=1e-9)
            teach = torch.full_like(other, a.teach, dtype=torch.float)
            if level > 0:  # behind the codes of another item, what was bought says nothing
                teach = torch.where(other, torch.ones_like(teach), teach)
            yield logits, teach[:, None] * soft + (1 - teach[:, None]) * bought
            inside = inside * (code[None] == code[path][:, None])

    def mask(self, b, width, n):
        """Who sees whom: history, branches of three, candidates, the question about them."""
        dev, k = self.device, self.a.listed
        total = 4 * width + k + 1
        place = torch.cat((torch.arange(width), torch.arange(width).repeat_interleave(3))).to(dev)  # last history row that is seen
        seen = torch.zeros((b, total, total), dtype=torch.bool, device=dev)
        seen[:, : 4 * width, :width] = torch.arange(width, device=dev)[None, None, :] <= place[None, :, None]
        three = torch.ones((3, 3), dtype=torch.bool, device=dev).tril()
        seen[:, width : 4 * width, width : 4 * width] = torch.block_diag(*[three] * width)
        real = torch.arange(width, device=dev)[None] < n[:, None]
        seen[:, 4 * width :, :width] = real[:, None, :]
        seen[:, 4 * width : -1, 4 * width : -1] = torch.eye(k, dtype=torch.bool, device=dev)
        seen[:, -1, 4 * width :] = True
        return as_bias(seen, self.dtype)

    def step(self, share):
        total = {}
        for part in self.batches():
            costs = self.plain(*part) if self.codes is None else self.full(*part)
            sum(costs.values()).backward()
            for k, v in costs.items():
                total[k] = total.get(k, 0.0) + v.detach()
        for o, rates in zip(self.optimizers, self.rates):
            for g, lr in zip(o.param_groups, rates):
                g["lr"] = lr * share
            o.step()
            o.zero_grad(set_to_none=True)
        self.clock.step += 1
        return total

    def give_codes(self):
        with torch.no_grad():
            self.model.eval()
            embedding = self.model.embedding()
            ids = embedding[FIRST : FIRST + self.data.count].float()
            # Directions count by how much the states use them.
            states = torch.cat([self.causal(embedding, items)[real] for items, real, *_ in self.batches()]).float()
            states = states - states.mean(0)
            values, basis = torch.linalg.eigh(states.T @ states / len(states))
            found = semantic.assign(ids @ (basis * values.clamp(min=0).sqrt()), LEVELS, self.a.seed)
            semantic.begin(self.model.embed, ids, found, self.data.first_code, LEVELS)
            self.model.train()
        self.codes = found + torch.tensor(self.data.first_code, device=self.device)
        return found

    @torch.no_grad()
    def evaluate(self, leave, most=None, width=64):
        """HIT and NDCG over all items, by beam search over codes and by identifier."""
        self.model.eval()
        history, lengths, truth = self.data.histories(leave, self.device)
        who, what = self.data.bought(leave, self.device)
        embedding = self.model.embedding()
        index = Tree(self.codes, self.data.first_code)
        places = {"beam": [], "identifier": [], "rank of 100": []}
        chosen = torch.arange(len(history), device=self.device)
        if most:
            chosen = chosen[:: max(1, len(history) // most)]
        for users in chosen.split(256):
            h, n = history[users], lengths[users]
            place = torch.full((len(history),), -1, device=self.device)
            place[users] = torch.arange(len(users), device=self.device)
            inside = place[who] >= 0
            seen = torch.zeros((len(users), self.data.count), dtype=torch.bool, device=self.device)
            seen[place[who[inside]], what[inside]] = True
            tokens = self.start(h)
            real = torch.arange(tokens.shape[1], device=self.device)[None] <= n[:, None]
            at = torch.arange(tokens.shape[1], device=self.device)[None].expand(len(h), -1)
            hidden = self.model(embedding, tokens, at, None, self.dtype)
            states = self.model.last(hidden[torch.arange(len(h), device=self.device), n])
            scores = (states @ self.ids(embedding).T).float().masked_fill(seen, float("-inf"))
            places["identifier"].append(scores.argsort(1, descending=True)[:, :20])
            found, logp = self.beam(index, embedding, tokens, real, n, width)
            item_scores = torch.full((len(users), self.data.count), float("-inf"), device=self.device).scatter(1, found, logp)
            places["beam"].append(item_scores.masked_fill(seen, float("-inf")).argsort(1, descending=True)[:, :20])
            retrieved = scores.topk(100, 1).indices
            listed = self.rank(embedding, tokens, real, n, retrieved)
            places["rank of 100"].append(retrieved.gather(1, listed.argsort(1, descending=True))[:, :20])
        self.model.train()
        out = {}
        for name, parts in places.items():
            hit = torch.cat(parts) == truth[chosen][:, None]
            gain = 1 / torch.log2(torch.arange(20, device=self.device).float() + 2)
            for k in (5, 10, 20):
                each = hit[:, :k].any(1).float()
                out[f"{name} HIT@{k}"] = round(float(each.mean()), 4)
                out[f"{name} NDCG@{k}"] = round(float((hit[:, :k] * gain[:k]).sum(1).mean()), 4)
            each = hit[:, :10].any(1).float()
            out[f"{name} HIT@10 ±"] = round(1.96 * float(each.std()) / len(each) ** 0.5, 4)
        return out

    def beam(self, index, embedding, tokens, real, n, width):
        """Returns items and log-probabilities: the paths that go on, level by level."""
        b, w = tokens.shape
        path = torch.full((b, 1, 1), NEXT, device=self.device)
        total = torch.zeros((b, 1), device=self.device)
        node = torch.zeros((b, 1), dtype=torch.long, device=self.device)
        for level, (first, size) in enumerate(zip(self.data.first_code, LEVELS)):
            beams, depth = path.shape[1], path.shape[2]
            rows = torch.cat((tokens, path.reshape(b, -1)), 1)
            after = (n[:, None, None] + 1 + torch.arange(depth, device=self.device)).expand(-1, beams, -1).reshape(b, -1)
            at = torch.cat((torch.arange(w, device=self.device)[None].expand(b, -1), after), 1)
            seen = torch.zeros((b, rows.shape[1], rows.shape[1]), dtype=torch.bool, device=self.device)
            seen[:, :w, :w] = torch.ones((w, w), dtype=torch.bool, device=self.device).tril()
            seen[:, w:, :w] = real[:, None, :]
            own = torch.ones((depth, depth), dtype=torch.bool, device=self.device).tril()
            seen[:, w:, w:] = torch.block_diag(*[own] * beams)
            hidden = self.model(embedding, rows, at, as_bias(seen, self.dtype), self.dtype)
            states = self.model.last(hidden[:, w : w + beams * depth].reshape(b, beams, depth, -1)[:, :, -1])
            logits = (states @ embedding[first : first + size].to(self.dtype).T).float()
            logits = logits.masked_fill(~index.follows[level][node], float("-inf"))
            total = (total[:, :, None] + torch.log_softmax(logits, -1)).reshape(b, -1)
            total, best = total.topk(min(width, total.shape[1]), 1)
            parent, code = torch.div(best, size, rounding_mode="floor"), best % size
            node = index.child[level][node.gather(1, parent), code]
            path = torch.cat((path.gather(1, parent[:, :, None].expand(-1, -1, depth)), (code + first)[:, :, None]), 2)
        return node.clamp(min=0), total

    def rank(self, embedding, tokens, real, n, candidates):
        """Scores of candidates by identifier, with all of them in the prompt."""
        b, w = tokens.shape
        k = candidates.shape[1]
        rows = torch.cat((tokens, candidates + FIRST, torch.full((b, 1), TAKE, device=self.device)), 1)
        at = torch.cat((torch.arange(w, device=self.device)[None].expand(b, -1), (n[:, None] + 1).expand(-1, k), n[:, None] + 2), 1)
        seen = torch.zeros((b, w + k + 1, w + k + 1), dtype=torch.bool, device=self.device)
        seen[:, :w, :w] = torch.ones((w, w), dtype=torch.bool, device=self.device).tril()
        seen[:, w:, :w] = real[:, None, :]
        seen[:, w:-1, w:-1] = torch.eye(k, dtype=torch.bool, device=self.device)
        seen[:, -1, w:] = True
        hidden = self.model(embedding, rows, at, as_bias(seen, self.dtype), self.dtype)
        state = self.model.last(hidden[:, w + k])
        return torch.einsum("bh,bkh->bk", state, embedding[FIRST + candidates].to(self.dtype)).float()

    def main(self):
        a, best, kept, found, report = self.a, -1.0, None, None, 0.0
        while self.clock.done() < 1:
            done = self.clock.done()
            if done >= a.first and self.codes is None:
                found = self.give_codes()
            share = min(1.0, done / 0.02 + 0.02) * min(1.0, (1 - done) / 0.6)
            costs = self.step(share)
            if done > report:
                report = done + 0.1
                line = {"seconds": round(time.time() - self.clock.start, 1), "step": self.clock.step}
                line.update({k: round(float(v), 3) for k, v in costs.items()})
                if self.codes is not None:
                    got = self.evaluate(2, a.validate)
                    line.update({k: got[k] for k in ("beam HIT@10", "identifier HIT@10", "rank of 100 HIT@10")})
                    if got["beam HIT@10"] > best:
                        best, kept = got["beam HIT@10"], {k: v.clone() for k, v in self.model.state_dict().items()}
                self.log.append(line)
                print("beauty", a.seed, json.dumps(line), flush=True)
        got = self.evaluate(2, a.validate)
        if kept is not None and got["beam HIT@10"] < best:
            self.model.load_state_dict(kept)
        self.model.round()
        result = {"validation": self.evaluate(2, a.test), "test": self.evaluate(1, a.test)}
        print("beauty", a.seed, "result", json.dumps(result), flush=True)
        os.makedirs(a.out, exist_ok=True)
        self.model.save(a.out)
        np.save(os.path.join(a.out, "codes.npy"), found.cpu().numpy().astype(np.uint8))
        with open(os.path.join(a.out, "log.json"), "w") as f:
            for line in self.log + [{"result": result, "settings": vars(a)}]:
                f.write(json.dumps(line) + "\n")


class Tree:
    """The codes that items have: which follow a path, and to which node they lead (at the end: which item)."""

    def __init__(self, codes, first):
        codes = (codes - torch.tensor(first, device=codes.device)).cpu().numpy()
        self.follows, self.child = [], []
        node = np.zeros(len(codes), dtype=np.int64)
        count = 1
        for level, size in enumerate(LEVELS):
            key = node * size + codes[:, level]
            known, following = np.unique(key, return_inverse=True)
            if level == len(LEVELS) - 1:
                following = np.arange(len(codes))
            child = np.full((count, size), -1, dtype=np.int64)
            child.reshape(-1)[key] = following
            self.child.append(torch.from_numpy(child).to("cuda" if torch.cuda.is_available() else "cpu"))
            self.follows.append(self.child[-1] >= 0)
            node, count = following, len(known)


def as_bias(seen, dtype):
    bias = torch.zeros(seen.shape, dtype=dtype, device=seen.device)
    return bias.masked_fill_(~seen, float("-inf"))[:, None]


def arguments():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--data", required=True)
    p.add_argument("--out", required=True)
    p.add_argument("--seconds", type=float, default=60)
    p.add_argument("--steps", type=int, default=0)
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--first", type=float, default=0.3, help="share of the run before there are codes")
    p.add_argument("--hidden", type=int, default=128)
    p.add_argument("--layers", type=int, default=2)
    p.add_argument("--heads", type=int, default=2)
    p.add_argument("--inter", type=int, default=256)
    p.add_argument("--dropout", type=float, default=0.3)
    p.add_argument("--smooth", type=float, default=0.1)
    p.add_argument("--teach", type=float, default=0.7, help="how much codes learn from the model's belief about items, rather than from purchases alone")
    p.add_argument("--spread", type=float, default=0.5, help="share of paths that are drawn from that belief")
    p.add_argument("--titles", type=int, default=1, help="whether embeddings share the words of titles")
    p.add_argument("--users", type=int, default=512, help="people of a batch")
    p.add_argument("--listed", type=int, default=32)
    p.add_argument("--matrices", type=float, default=0.005)
    p.add_argument("--others", type=float, default=0.001)
    p.add_argument("--decay", type=float, default=0.1)
    p.add_argument("--validate", type=int, default=4000, help="people to choose by")
    p.add_argument("--test", type=int, default=None)
    return p.parse_args()


if __name__ == "__main__":
    Trainer(arguments()).main()

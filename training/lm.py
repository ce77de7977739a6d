"""Trains the shop's language model: one Qwen3-shaped checkpoint that ranks and generates.

    grebe eval world --out arrays --arrays --train 100000
    python3 lm.py --data arrays --out model --seconds 180

First the model learns, on plain causal histories, what is bought after each line. Its item vectors are
then cut into semantic IDs (codes.py). In the rest of the time it learns every question in every
layout, user-first, item-first and causal, with the masks and positions that the server uses (plans.py).
The learning rate falls with the time that is spent, so a run ends when it is told to.
"""

import argparse
import contextlib
import json
import os
import time

import numpy as np
import torch
import torch.nn.functional as F

import codes as semantic
from data import Histories, Questions, Split, World, loader, to_device
from decoder import Decoder, Shape, dense_bias, seed_all


ORDERS = ("user", "item", "causal")


class Clock:
    """How much of a run is done, by seconds or by steps."""

    def __init__(self, seconds, steps):
        self.seconds, self.steps, self.step, self.start = seconds, steps, 0, time.time()

    def done(self):
        if self.steps:
            return self.step / self.steps
        return (time.time() - self.start) / self.seconds


def rate(done, warm=0.02, turn=0.0, low=0.5):
    """The share of the full learning rate: up, level, down to nothing from a quarter on. Where the questions
    change, at turn, it is at low: the line goes from 1 to low before it and from low to 0 behind it."""
    if done < warm:
        return 0.02 + done / warm
    if done < turn:
        return 1 - (1 - low) * max(0.0, (done - turn / 2) / (turn / 2))
    if turn > 0:
        return low * max(0.0, (1 - done) / (1 - turn))
    return max(0.0, min(1.0, (1 - done) / 0.75))


class Trainer:
    def __init__(self, a):
        seed_all(a.seed)
        self.a = a
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.dtype = torch.bfloat16 if self.device.type == "cuda" and not a.f32 else torch.float32
        self.world = World(a.data)
        m = self.world.meta
        shape = Shape(m["vocabulary"], a.hidden, a.layers, a.heads, a.kv_heads, a.inter)
        self.model = Decoder(shape, self.world.first, self.world.features()).to(self.device)
        if a.start:
            self.model.load(a.start)
        self.optimizers = self.model.optimizers(a.matrices, a.others)
        self.rates = [[g["lr"] for g in o.param_groups] for o in self.optimizers]
        self.train, self.valid = Split(a.data, "train"), Split(a.data, "validation")
        self.clock = Clock(a.seconds, a.steps)
        self.codes = None  # tokens of each item's codes
        self.sums, self.log = {}, []

    # What a batch costs

    def identifiers(self, embedding):
        w = self.world
        return embedding[w.first : w.first + w.count].to(self.dtype)

    def answers(self, hidden, rows):
        """The states at the rows that answer, normed."""
        return self.model.last(hidden.reshape(-1, hidden.shape[-1])[rows.reshape(-1)])

    def dense(self, batch, hidden, ids):
        logits = self.answers(hidden, batch["dense_rows"]) @ ids.T
        return F.cross_entropy(logits.float(), batch["dense_items"])

    def histories(self, batch):
        embedding = self.model.embedding()
        n = batch["tokens"].shape[1]
        positions = torch.arange(n, device=self.device)[None].expand(len(batch["tokens"]), -1)
        hidden = self.model(embedding, batch["tokens"].long(), positions, None, self.dtype)
        return {"dense": self.dense(batch, hidden, self.identifiers(embedding))}

    def hidden(self, batch, embedding):
        split = batch["split"]
        seen, segments = batch["seen"], batch["segments"]
        first = None  # a user behind the preamble is causal
        if batch["order"] == "item":
            first = dense_bias(seen, segments[:, :split], self.dtype)
        bias = (first, dense_bias(seen, segments, self.dtype, split))
        return self.model(embedding, batch["tokens"].long(), batch["positions"].long(), bias, self.dtype, split)

    def lists(self, batch, hidden, embedding):
        """The scores of the candidates by identifier, and of those that were asked about."""
        m = self.world.meta
        answer = self.answers(hidden, batch["answer_rows"])
        listed = embedding[self.world.first + batch["candidates"]].to(self.dtype)
        scores = torch.einsum("bh,bkh->bk", answer, listed).float()
        each = self.answers(hidden, batch["asked_rows"])
        sides = embedding[torch.tensor([m["yes"], m["no"]], device=self.device)].to(self.dtype)
        said = (each @ sides.T).float().reshape(*batch["asked_rows"].shape, 2)
        return answer, scores, said[..., 0] - said[..., 1]

    def questions(self, batch):
        embedding = self.model.embedding()
        ids = self.identifiers(embedding)
        hidden = self.hidden(batch, embedding)
        answer, scores, margins = self.lists(batch, hidden, embedding)
        name = batch["order"]
        out = {"dense_item" if name == "item" else "dense": self.dense(batch, hidden, ids)}
        out[name] = F.cross_entropy(scores, batch["chosen"])
        out[name + "_all"] = 0.5 * F.cross_entropy((answer @ ids.T).float(), batch["next"])
        if margins.shape[1] > 0:
            out[name + "_point"] = F.cross_entropy(margins, batch["asked_chosen"])
            truth = F.one_hot(batch["asked_chosen"], margins.shape[1]).float()
            out[name + "_yes"] = 0.2 * F.binary_cross_entropy_with_logits(margins, truth)
        if len(batch["generated_items"]) > 0:
            out.update(self.generated(batch, hidden, embedding))
        return out

    def generated(self, batch, hidden, embedding):
        out, m = {}, self.world.meta
        states = self.answers(hidden, batch["generated_rows"]).reshape(*batch["generated_rows"].shape, -1)
        for level, (first, size) in enumerate(zip(m["first_code"], m["levels"])):
            logits = states[:, level] @ embedding[first : first + size].to(self.dtype).T
            truth = self.codes[batch["generated_items"], level] - first
            out[f"code{level}"] = F.cross_entropy(logits.float(), truth)
        return out

    # Steps

    def step(self, costs):
        sum(costs.values()).backward()
        share = rate(self.clock.done(), self.a.warm, self.a.first, self.a.low)
        for o, rates in zip(self.optimizers, self.rates):
            for g, lr in zip(o.param_groups, rates):
                g["lr"] = lr * share
            o.step()
            o.zero_grad(set_to_none=True)
        self.clock.step += 1
        for k, v in costs.items():
            total, count = self.sums.get(k, (0.0, 0))
            self.sums[k] = (total + v.detach(), count + 1)

    def report(self, batch=None):
        line = {"seconds": round(time.time() - self.clock.start, 1), "step": self.clock.step, "done": round(self.clock.done(), 3)}
        line.update({k: round(float(t) / n, 4) for k, (t, n) in self.sums.items()})
        self.sums = {}
        self.log.append(line)
        print(json.dumps(line), flush=True)

    def run(self, dataset, cost, until):
        batches = loader(dataset, self.a.workers, self.device.type == "cuda")
        next_report = 0.0
        while self.clock.done() < until:
            self.step(cost(to_device(next(batches), self.device)))
            if self.clock.done() > next_report:
                self.report()
                next_report = self.clock.done() + 0.05
        self.report()

    @torch.no_grad()
    def vectors(self):
        """Item vectors whose distances are differences of logits, as the model's states spread."""
        dataset = Histories(self.world, self.valid, self.a.rows, 1)
        embedding = self.model.embedding()
        moment, n = 0.0, 0
        for k, batch in zip(range(8), dataset):
            batch = to_device(batch, self.device)
            positions = torch.arange(batch["tokens"].shape[1], device=self.device)[None].expand(len(batch["tokens"]), -1)
            hidden = self.model(embedding, batch["tokens"].long(), positions, None, self.dtype)
            states = self.answers(hidden, batch["dense_rows"]).float()
            moment, n = moment + states.T @ states, n + len(states)
        values, basis = torch.linalg.eigh(moment / n)
        ids = embedding[self.world.first : self.world.first + self.world.count].float()
        return ids @ (basis * values.clamp(min=0).sqrt())

    def take_codes(self, found):
        self.codes = torch.from_numpy(found).to(self.device) + torch.tensor(self.world.meta["first_code"], device=self.device)
        self.codes_np = self.codes.cpu().numpy()

    def give_codes(self):
        m = self.world.meta
        return semantic.assign(self.vectors(), m["levels"], self.a.seed).cpu().numpy()

    @torch.no_grad()
    def validate(self, split, most):
        """NDCG@10 in expectation, as a share of the optimum's, in each layout, over the first customers of a split."""
        out = {}
        for order in ORDERS:
            dataset = Questions(self.world, split, self.a.rows, 3, self.codes_np, 100, 100, 1, (order,))
            r = np.random.default_rng(0)
            users = np.argsort(split.lengths()[:most], kind="stable")
            got = {"identifier": 0.0, "pointwise": 0.0}
            best = 0.0
            costs = {}
            for part in np.array_split(users, max(1, most // 16)):
                batch = to_device(dataset.batch(r, part, order), self.device)
                embedding = self.model.embedding()
                hidden = self.hidden(batch, embedding)
                _, scores, margins = self.lists(batch, hidden, embedding)
                p = torch.from_numpy(split.p[part]).to(self.device)
                p = p / p.sum(1, keepdim=True)
                best += ndcg(p, p)
                got["identifier"] += ndcg(scores, p)
                if order != "causal":
                    got["pointwise"] += ndcg(margins, p)
                if order == "user":
                    for k, v in self.generated(batch, hidden, embedding).items():
                        costs[k] = costs.get(k, 0.0) + float(v) * len(part) / most
            out.update({f"{order} {k}": round(v / best, 4) for k, v in got.items()})
            out.update({k: round(v, 4) for k, v in costs.items()})
        out["optimum"] = round(best / most, 4)
        return out

    def main(self):
        a = self.a
        if a.first > 0:
            self.run(Histories(self.world, self.train, a.rows, a.seed), self.histories, a.first)
        found = np.load(os.path.join(a.start, "codes.npy")).astype(np.int64) if a.start else self.give_codes()
        self.take_codes(found)
        self.run(Questions(self.world, self.train, a.rows, a.seed + 1, self.codes_np, a.listed, a.asked, a.generated, ORDERS), self.questions, 1.0)
        self.model.round()
        self.model.eval()
        result = self.validate(self.valid, min(a.validate, len(self.valid)))
        result["step"], result["seconds"] = self.clock.step, round(time.time() - self.clock.start, 1)
        print("validation", json.dumps(result), flush=True)
        self.log.append({"validation": result, "settings": vars(a)})
        self.save(found)

    def save(self, found):
        out = self.a.out
        self.model.save(out)
        np.save(os.path.join(out, "codes.npy"), found.astype(np.uint8))
        with open(os.path.join(out, "log.json"), "w") as f:
            for line in self.log:
                f.write(json.dumps(line) + "\n")


def ndcg(scores, p, k=10):
    top = scores.topk(k, dim=1).indices
    gain = 1 / torch.log2(torch.arange(k, device=p.device).float() + 2)
    return float((p.gather(1, top) * gain).sum())


def arguments():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--data", required=True, help="folder of grebe eval world --arrays")
    p.add_argument("--out", help="folder to write")
    p.add_argument("--check", type=int, default=0, help="instead: measure the model of --start on so many test customers")
    p.add_argument("--f32", action="store_true", help="with --check: in float32 on a GPU too")
    p.add_argument("--seconds", type=float, default=180)
    p.add_argument("--steps", type=int, default=0, help="instead of seconds")
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--start", default="", help="folder of a model to go on with: its weights and codes")
    p.add_argument("--first", type=float, default=0.4, help="share of the run on plain histories")
    p.add_argument("--low", type=float, default=0.5, help="share of the learning rate behind them")
    p.add_argument("--hidden", type=int, default=256)
    p.add_argument("--layers", type=int, default=4)
    p.add_argument("--heads", type=int, default=4)
    p.add_argument("--kv-heads", type=int, default=2)
    p.add_argument("--inter", type=int, default=768)
    p.add_argument("--rows", type=int, default=49152, help="rows of a batch")
    p.add_argument("--matrices", type=float, default=0.02, help="learning rate of the layers' matrices")
    p.add_argument("--others", type=float, default=0.003, help="learning rate of all else")
    p.add_argument("--warm", type=float, default=0.02)
    p.add_argument("--listed", type=int, default=32)
    p.add_argument("--asked", type=int, default=16)
    p.add_argument("--generated", type=int, default=8)
    p.add_argument("--workers", type=int, default=5)
    p.add_argument("--validate", type=int, default=400)
    return p.parse_args()


def check(a):
    """Measures a model on test customers, in float32 where there is no GPU: what grebe eval must find too."""
    t = Trainer(a)
    t.model.eval()
    t.take_codes(np.load(os.path.join(a.start, "codes.npy")).astype(np.int64))
    print("test", json.dumps(t.validate(Split(a.data, "test"), a.check)))


if __name__ == "__main__":
    given = arguments()
    with contextlib.suppress(RuntimeError):
        torch.set_float32_matmul_precision("highest" if given.f32 else "high")
    torch.set_num_threads(max(1, min(torch.get_num_threads(), 8)))
    if given.check:
        check(given)
    else:
        Trainer(given).main()

"""Trains a language model that reads Amazon Beauty as text: histories and candidates are titles, answers identifiers.

    python3 titles.py --data ../../shared/data/beauty --out beauty-items.ndjson
    grebe eval world --out titles --arrays --items-file beauty-items.ndjson
    python3 beauty_text.py --data ../../shared/data/beauty --arrays titles --out beauty-text --seconds 180

lm.py's model and recipe, with what small data needs: dropout, questions about every purchase, and candidates drawn anew
each time. Scores are of how much likelier an item is than by popularity, since candidates are drawn by that. The people
of validation say when to stop; those of the test are asked once, at the end.
"""

import argparse
import json
import os
import time

import numpy as np
import torch
import torch.nn.functional as F

import lm
from data import to_device
from decoder import Decoder, Shape, seed_all
from titles import CANDIDATES, Catalog, Histories, Layouts, Mixed, People, Places, Rankings


class Trainer(lm.Trainer):
    def __init__(self, a):
        seed_all(a.seed)
        self.a = a
        self.device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
        self.dtype = torch.bfloat16 if self.device.type == "cuda" else torch.float32
        self.world, self.people = Catalog(a.arrays), People(a.data)
        shape = Shape(self.world.meta["vocabulary"], a.hidden, a.layers, a.heads, a.kv_heads, a.inter)
        self.model = Decoder(shape, self.world.first, self.world.features(), a.dropout).to(self.device)
        self.optimizers = self.model.optimizers(a.matrices, a.others, a.decay)
        for g in self.optimizers[1].param_groups:
            g["weight_decay"] = a.decay
        self.rates = [[g["lr"] for g in o.param_groups] for o in self.optimizers]
        popular = torch.from_numpy(self.people.popular).float() + 1e-6
        self.popular = popular.log().to(self.device)
        self.sums, self.log = {}, []

    def dense(self, batch, hidden, ids):
        logits = (self.answers(hidden, batch["dense_rows"]) @ ids.T).float() + self.popular
        return F.cross_entropy(logits, batch["dense_items"])

    def states(self, batch, embedding):
        if batch["order"] != "causal":
            return self.hidden(batch, embedding)
        n = batch["tokens"].shape[1]
        positions = torch.arange(n, device=self.device)[None].expand(len(batch["tokens"]), -1)
        return self.model(embedding, batch["tokens"].long(), positions, None, self.dtype)

    def alone(self, batch, embedding, whole=2):
        """The states of ordinary prompts in which, behind the first layers, keys and values of candidates are those of candidates that saw
        the preamble and themselves alone: what grebe serves with prefix: blend and nothing repaired, but for places. The rows of candidates that
        stand alone come behind the prompt's."""
        tokens, owner = batch["tokens"].long(), batch["owner"]
        b, n = tokens.shape
        at = torch.arange(n, device=self.device)
        causal, self_alone = (at[:, None] >= at[None, :])[None], torch.eye(n, dtype=torch.bool, device=self.device)[None]
        listed = owner >= 0
        lead = (at < len(self.world.prompts.preamble))[None, None, :] & listed[:, :, None]
        block = causal & (owner[:, :, None] == owner[:, None, :]) & listed[:, :, None]
        below = torch.cat((lead, block | self_alone), 2)
        early = torch.cat((torch.cat((causal.expand(b, -1, -1), torch.zeros_like(block)), 2), below), 1)
        late = torch.cat((torch.cat((causal & ~listed[:, None, :] | self_alone, causal & listed[:, None, :]), 2), below), 1)
        masks = [torch.zeros((b, 1, 2 * n, 2 * n), dtype=self.dtype, device=self.device).masked_fill_(~m[:, None], float("-inf")) for m in (early, late)]
        bias = [masks[i >= whole] for i in range(self.a.layers)]
        return self.model(embedding, tokens.repeat(1, 2), at.repeat(2)[None].expand(b, -1), bias, self.dtype)[:, :n]

    def scores(self, batch, hidden, embedding):
        answer = self.answers(hidden, batch["answer_rows"])
        listed = embedding[self.world.first + batch["candidates"]].to(self.dtype)
        return answer, torch.einsum("bh,bkh->bk", answer, listed).float()

    def questions(self, batch):
        embedding = self.model.embedding()
        ids, hidden, name = self.identifiers(embedding), self.states(batch, embedding), batch["order"]
        answer, scores = self.scores(batch, hidden, embedding)
        return {
            "dense_item" if name == "item" else "dense": self.dense(batch, hidden, ids), name: F.cross_entropy(scores, batch["chosen"]),
            name + "_all": 0.5 * F.cross_entropy((answer @ ids.T).float() + self.popular, batch["next"]),
        }

    def run(self, dataset, cost, until):
        """As lm.py's; with rankings, it looks at validation now and then and keeps the best."""
        batches = lm.loader(dataset, self.a.workers, self.device.type == "cuda")
        step = 0.1
        report = self.clock.done() + step
        while self.clock.done() < until:
            self.step(cost(to_device(next(batches), self.device)))
            if self.clock.done() > report:
                report = self.clock.done() + step
                if isinstance(dataset, Mixed) and self.clock.done() > 0.45:
                    self.look()
                self.report()
        self.report()

    def look(self):
        got = metrics(self.asked("causal", self.people.validation[: self.a.validate]))
        self.sums["validation"] = (got["NDCG@10"], 1)
        if got["NDCG@10"] > self.best[0]:
            self.best = (got["NDCG@10"], {k: v.clone() for k, v in self.model.state_dict().items()})

    @torch.no_grad()
    def asked(self, order, users, rows=16384):
        """The scores of each person's candidates, and the place of the answer in the order of scores."""
        self.model.eval()
        embedding = self.model.embedding()
        found = np.zeros((len(users), CANDIDATES), dtype=np.float32)
        places = np.array([(u, len(self.people.data.people[u]) - 1) for u in users])
        split = Places(self.world, self.people, places)
        by = np.argsort(split.lengths(), kind="stable")
        causal, layouts = Rankings.__new__(Rankings), Layouts(self.world, split, rows, 0, CANDIDATES, True)
        causal.world, causal.people = self.world, self.people
        truth = np.zeros(len(users), dtype=np.int64)
        for part in np.array_split(by, max(1, len(by) * 2300 // rows)):
            if order in ("causal", "alone"):
                batch = causal.batch([causal.held(users[k]) for k in part])
            else:
                batch = layouts.batch(np.random.default_rng(0), part, order)
            batch = to_device(batch, self.device)
            hidden = self.alone(batch, embedding) if order == "alone" else self.states(batch, embedding)
            _, scores = self.scores(batch, hidden, embedding)
            found[part], truth[part] = scores.cpu().numpy(), batch["chosen"].cpu().numpy()
        self.model.train()
        own = found[np.arange(len(users)), truth]
        return found, (found > own[:, None]).sum(1)

    @torch.no_grad()
    def reads(self, users):
        """Where the answer's attention goes, mean over people: of each layer the shares of history and candidates, and the largest share
        of candidates that one head has."""
        self.model.eval()
        embedding, rankings = self.model.embedding(), Rankings.__new__(Rankings)
        rankings.world, rankings.people = self.world, self.people
        total = np.zeros((self.a.layers, 3))
        for u in users:
            batch = to_device(rankings.batch([rankings.held(u)]), self.device)
            n = int(batch["answer_rows"]) + 1
            watch, at, listed = [], torch.arange(n, device=self.device), batch["owner"][0, :n] >= 0
            self.model(embedding, batch["tokens"][:, :n].long(), at[None], None, self.dtype, watch=watch)
            first = int(torch.nonzero(listed)[0])
            history = (at >= len(self.world.prompts.preamble)) & (at < first)
            heads = [(w[0, :, history].sum(1), w[0, :, listed].sum(1)) for w in watch]
            total += np.array([(float(h.mean()), float(c.mean()), float(c.max())) for h, c in heads])
        return np.round(total / len(users), 3).tolist()

    def main(self):
        a = self.a
        self.best, self.clock = (-1.0, None), lm.Clock(a.seconds, a.steps)
        if a.check:
            self.model.load(a.check)
            print("result", json.dumps(self.result()), flush=True)
            return
        if a.first > 0:
            self.run(Histories(self.world, self.people, a.rows, a.seed), self.histories, a.first)
        rankings = Rankings(self.world, self.people, a.rows, a.seed + 1)
        layouts = Layouts(self.world, Places(self.world, self.people, rankings.places), a.rows, a.seed + 2) if a.layouts > 0 else rankings
        self.run(Mixed(rankings, layouts, a.layouts), self.questions, 1.0)
        self.look()
        self.model.load_state_dict(self.best[1])
        self.model.round()
        self.model.save(a.out)
        result = self.result()
        result["step"], result["seconds"] = self.clock.step, round(time.time() - self.clock.start, 1)
        print("result", json.dumps(result), flush=True)
        self.log.append({"result": result, "settings": vars(a)})
        with open(os.path.join(a.out, "log.json"), "w") as f:
            for line in self.log:
                f.write(json.dumps(line) + "\n")

    def result(self):
        """All people who were held out, in bf16; some of the test in float32, whose scores are kept."""
        a, out = self.a, {}
        for name, users in (("validation", self.people.validation[: a.validate]), ("test", self.people.test[: a.test])):
            for order in ("causal", "user", "item") if a.layouts > 0 else ("causal",):
                out[f"{name} {order}"] = metrics(self.asked(order, users))
            out[f"{name} popularity"] = metrics(self.by_popularity(users))
        out["answer reads history, candidates, candidates by one head"] = self.reads(self.people.validation[: min(a.validate, 100)])
        out["validation, candidates alone"] = metrics(self.asked("alone", self.people.validation[: a.validate]))
        self.dtype = torch.float32
        torch.backends.cuda.matmul.allow_tf32 = False
        found = self.asked("causal", self.people.test[: a.exact], 4096)
        out[f"test causal, f32, {a.exact} people"] = metrics(found)
        os.makedirs(a.out, exist_ok=True)
        np.save(os.path.join(a.out, "scores.npy"), found[0])
        return out

    def by_popularity(self, users):
        found = np.array([self.people.counts[self.people.offers[u]] for u in users], dtype=np.float32)
        own = np.array([self.people.counts[self.people.data.people[u][-1]] for u in users])
        return found, (found > own[:, None]).sum(1)


def metrics(asked):
    """NDCG@10 and hits, with standard errors over people."""
    _, place = asked
    gain = np.where(place < 10, 1 / np.log2(place + 2), 0)
    out = {"NDCG@10": round(float(gain.mean()), 4), "±": round(float(1.96 * gain.std() / len(gain) ** 0.5), 4)}
    out.update({f"HIT@{k}": round(float((place < k).mean()), 4) for k in (1, 5, 10)})
    return out


def arguments():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--data", required=True, help="folder of Beauty")
    p.add_argument("--arrays", required=True, help="folder of grebe eval world --arrays --items-file")
    p.add_argument("--out", required=True)
    p.add_argument("--check", default="", help="instead: measure the model of this folder")
    p.add_argument("--seconds", type=float, default=180)
    p.add_argument("--steps", type=int, default=0, help="instead of seconds")
    p.add_argument("--seed", type=int, default=1)
    p.add_argument("--first", type=float, default=0.15, help="share of the run on plain histories")
    p.add_argument("--low", type=float, default=0.7, help="share of the learning rate behind them")
    p.add_argument("--layouts", type=float, default=0.5, help="share of the batches that are user-first or item-first")
    p.add_argument("--hidden", type=int, default=256)
    p.add_argument("--layers", type=int, default=4)
    p.add_argument("--heads", type=int, default=4)
    p.add_argument("--kv-heads", type=int, default=2)
    p.add_argument("--inter", type=int, default=768)
    p.add_argument("--dropout", type=float, default=0.2)
    p.add_argument("--rows", type=int, default=49152, help="rows of a batch")
    p.add_argument("--matrices", type=float, default=0.01, help="learning rate of the layers' matrices")
    p.add_argument("--others", type=float, default=0.002, help="learning rate of all else")
    p.add_argument("--decay", type=float, default=0.1)
    p.add_argument("--warm", type=float, default=0.02)
    p.add_argument("--workers", type=int, default=6)
    p.add_argument("--validate", type=int, default=1000)
    p.add_argument("--test", type=int, default=3000)
    p.add_argument("--exact", type=int, default=200)
    return p.parse_args()


if __name__ == "__main__":
    torch.backends.cuda.matmul.allow_tf32 = True
    torch.set_num_threads(max(1, min(torch.get_num_threads(), 8)))
    Trainer(arguments()).main()

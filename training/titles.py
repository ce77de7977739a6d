"""People who bought items with titles, as texts: splits, questions, and batches of them for beauty_text.py.

    python3 titles.py --data ../../shared/data/beauty --out beauty-items.ndjson
    grebe eval world --out titles --arrays --items-file beauty-items.ndjson

writes what this module reads: a tokenizer of the titles' words, and the tokens of each item as a candidate and as a
line of a history. People are held out whole: those of validation and test are in no batch, and what they bought
counts for nothing. Each of them is asked once, for the last purchase, among candidates of which the others are
drawn by how often they were bought in training and not by the person: how popular an item is says nothing then.
"""

import argparse
import json
import os
import re

import numpy as np
import torch

from beauty import Data
from data import Questions, World, pad, tensor, worker

VALIDATION, TEST = 1000, 3000  # people, held out
CANDIDATES = 100
LONGEST = 30  # purchases that a text tells
WIDEST = 160  # letters of a title
SEED = 20261115  # of who is held out and what is offered; no setting


def short(title):
    """A title in one line, cut between words."""
    title = " ".join(title.split()) or "(no title)"
    return title if len(title) <= WIDEST else title[:WIDEST].rsplit(" ", 1)[0]


class Catalog(World):
    """What grebe eval world --arrays --items-file wrote."""

    def __init__(self, folder):
        super().__init__(folder)
        tokens, offsets = (np.load(os.path.join(folder, f"items.{k}.npy")) for k in ("lines", "line_offsets"))
        self.lines = [tokens[a:b].astype(np.int32) for a, b in zip(offsets[:-1], offsets[1:])]
        self.items = [t.astype(np.int32) for t in self.items]
        self.head = np.asarray(self.meta["tokens"]["head"], dtype=np.int32)

    def features(self, least=3, most=24):
        """Numbers of the words of each title that other titles have too, and of its first word, often a brand."""
        with open(os.path.join(self.folder, "items.ndjson")) as f:
            words = [re.findall(r"[a-z0-9]+", json.loads(line)["text"].lower()) for line in f]
        words = [set(w) | ({"first " + w[0]} if w else set()) for w in words]
        count = {}
        for ws in words:
            for w in ws:
                count[w] = count.get(w, 0) + 1
        known = {w: i for i, w in enumerate(sorted(w for w, c in count.items() if c >= least))}
        out = np.full((self.count, most), -1, dtype=np.int64)
        for i, ws in enumerate(words):
            ws = sorted((w for w in ws if w in known), key=lambda w: (count[w], w))[:most]
            out[i, : len(ws)] = [known[w] for w in ws]
        return torch.from_numpy(out)

    def text(self, bought):
        """The tokens of a person."""
        return np.concatenate([self.head] + [self.lines[i] for i in bought[-LONGEST:]])


class People:
    """Who bought what, who is held out, and what those are asked."""

    def __init__(self, folder):
        self.data = Data(folder)
        r = np.random.default_rng(SEED)
        order = r.permutation(len(self.data.people))
        self.test, self.validation, self.train = np.split(order, [TEST, TEST + VALIDATION])
        bought = np.concatenate([self.data.people[u] for u in self.train])
        self.counts = np.bincount(bought, minlength=self.data.count)
        self.popular = self.counts / self.counts.sum()
        self.below = np.cumsum(self.popular)
        self.offers = {u: self.offer(r, u) for u in np.concatenate((self.validation, self.test))}

    def drawn(self, r, without, n):
        """Draws n different items by popularity, none of them in without."""
        out, taken = [], set(without)
        while len(out) < n:
            for i in np.searchsorted(self.below, r.random(2 * n), side="right"):
                i = min(int(i), len(self.below) - 1)
                if i not in taken and len(out) < n:
                    taken.add(i)
                    out.append(i)
        return out

    def offer(self, r, u):
        """The candidates of a person who was held out, in random order."""
        bought = self.data.people[u]
        out = np.array([bought[-1]] + self.drawn(r, bought.tolist(), CANDIDATES - 1))
        return out[r.permutation(len(out))]


class Histories(torch.utils.data.IterableDataset):
    """Batches of plain histories, with what was bought after each line."""

    def __init__(self, world, people, rows, seed):
        self.world, self.people, self.rows, self.seed = world, people, rows, seed

    def __iter__(self):
        r = np.random.default_rng((self.seed, worker()))
        while True:
            yield self.batch(r.choice(self.people.train, 2048), r)

    def batch(self, users, r):
        w, head = self.world, np.asarray(self.world.prompts.preamble, dtype=np.int32)
        lists = []
        for u in users:
            bought = self.people.data.people[u]
            end = min(len(bought), LONGEST + 1)
            start = r.integers(len(bought) - end + 1)
            lists.append(bought[start : start + end])
        texts = [[np.concatenate((head, w.head))] + [w.lines[i] for i in b[:-1]] for b in lists]
        size = np.array([sum(map(len, t)) for t in texts])
        order = np.argsort(size, kind="stable")
        start = int(r.integers(max(1, len(order) - 64)))
        width = pad(size[order[min(start + 64, len(order) - 1)]])
        chosen = order[start : start + max(8, self.rows // width)]
        width = pad(size[chosen].max())
        tokens = np.zeros((len(chosen), width), dtype=np.int32)
        rows, items = [], []
        for b, k in enumerate(chosen):
            tokens[b, : size[k]] = np.concatenate(texts[k])
            rows.append(b * width + np.cumsum([len(t) for t in texts[k]]) - 1)
            items.append(lists[k])
        return {"tokens": tensor(tokens), "dense_rows": tensor(np.concatenate(rows)), "dense_items": tensor(np.concatenate(items))}


class Rankings(torch.utils.data.IterableDataset):
    """Batches of ordinary prompts: preamble, person, candidates one after the other, question. Of those who are trained on, any
    purchase but the first may be asked for, and candidates are drawn anew each time."""

    def __init__(self, world, people, rows, seed):
        self.world, self.people, self.rows, self.seed = world, people, rows, seed
        self.places = np.array([(u, k) for u in people.train for k in range(1, len(people.data.people[u]))])

    def __iter__(self):
        r = np.random.default_rng((self.seed, worker()))
        while True:
            listed = CANDIDATES if r.random() < 0.4 else 32
            n = max(1, self.rows // ((listed * 19) + 160))
            yield self.batch([self.question(r, *self.places[k], listed) for k in r.integers(len(self.places), size=n)])

    def question(self, r, u, k, listed):
        bought = self.people.data.people[u]
        history, truth = bought[:k], int(bought[k])
        listed = np.array([truth] + self.people.drawn(r, bought.tolist(), listed - 1))
        listed = listed[r.permutation(len(listed))]
        return history, listed, truth

    def held(self, u):
        """The question about somebody who was held out."""
        bought = self.people.data.people[u]
        return bought[:-1], self.people.offers[u], int(bought[-1])

    def batch(self, questions):
        w, p = self.world, self.world.prompts
        head, ask = np.asarray(p.preamble, dtype=np.int32), np.asarray(p.instruction, dtype=np.int32)
        parts = [[head, w.text(h)] + [w.items[i] for i in c] + [ask] for h, c, _ in questions]
        width = pad(max(sum(map(len, t)) for t in parts))
        tokens = np.zeros((len(parts), width), dtype=np.int32)
        owner = np.full((len(parts), width), -1, dtype=np.int32)  # the candidate that a row is of
        rows, items, answers = [], [], []
        for b, (t, (history, listed, truth)) in enumerate(zip(parts, questions)):
            sizes = np.array([len(x) for x in t])
            after = np.cumsum(sizes)
            tokens[b, : after[-1]] = np.concatenate(t)
            owner[b, after[1] : after[-2]] = np.repeat(np.arange(len(listed)), sizes[2:-1])
            answers.append(b * width + after[-1] - 1)
            told = np.append(history[-LONGEST:], truth)
            rows.append(b * width + len(head) + len(w.head) + np.cumsum([len(w.lines[i]) for i in told[:-1]]) - 1)
            items.append(told[1:])
        return {
            "order": "causal", "tokens": tensor(tokens), "owner": tensor(owner), "answer_rows": tensor(np.array(answers)),
            "candidates": tensor(np.array([c for _, c, _ in questions])), "next": tensor(np.array([t for _, _, t in questions])),
            "chosen": tensor(np.array([int(np.nonzero(c == t)[0][0]) for _, c, t in questions])),
            "dense_rows": tensor(np.concatenate(rows)), "dense_items": tensor(np.concatenate(items)),
        }


class Places:
    """Questions about people as data.Questions takes them: one per purchase but the first of those who are trained on, or
    one per person who was held out."""

    def __init__(self, world, people, places):
        self.world, self.people, self.places = world, people, places
        self.next = np.array([people.data.people[u][k] for u, k in places])
        sizes = np.array([len(x) for x in world.lines])
        self.size = np.array([len(world.head) + sizes[self.told(v)].sum() for v in range(len(places))])

    def __len__(self):
        return len(self.places)

    def told(self, v):
        u, k = self.places[v]
        return self.people.data.people[u][max(0, k - LONGEST) : k]

    def lengths(self):
        return self.size

    def chunks(self, v):
        return [self.world.head] + [self.world.lines[i] for i in self.told(v)]

    def targets(self, v):
        return np.append(self.told(v), self.next[v])


class Layouts(Questions):
    """Batches of rankings user-first and item-first, by the masks and positions of plans.py, one question per plan."""

    def __init__(self, world, split, rows, seed, listed=32, held=False):
        super().__init__(world, split, rows, seed, None, listed, 0, 0, ("user", "item"))
        self.held = held

    def choose(self, r, v, listed):
        u, k = self.split.places[v]
        bought, people = self.split.people.data.people[u], self.split.people
        if self.held:
            out = people.offers[u]
        else:
            out = np.array([bought[k]] + people.drawn(r, bought.tolist(), listed - 1))
            out = out[r.permutation(len(out))]
        return out, int(np.nonzero(out == bought[k])[0][0])


class Mixed(torch.utils.data.IterableDataset):
    """Batches of ordinary prompts and, with a share, of the other layouts."""

    def __init__(self, rankings, layouts, share):
        self.rankings, self.layouts, self.share, self.seed = rankings, layouts, share, rankings.seed

    def __iter__(self):
        r = np.random.default_rng((self.seed, worker(), 1))
        rankings, layouts = iter(self.rankings), iter(self.layouts)
        while True:
            yield next(layouts if r.random() < self.share else rankings)


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--data", required=True)
    p.add_argument("--out", required=True)
    a = p.parse_args()
    data = Data(a.data)
    with open(a.out, "w") as f:
        for asin, title in zip(data.ids, data.titles):
            f.write(json.dumps({"id": asin, "text": short(title)}, ensure_ascii=False, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()

"""The plans of Grebe's prompts: which token sees which, and at which position it stands.

This is prompt/layout.go and plan/plan.go again, for training. testdata/plans.json, which a Go test
writes and checks, holds both sides to the same masks and positions (test_plans.py).

A plan is a list of segments. A segment attends causally to itself and in full to the earlier segments
in `sees`; siblings may share a start position. Training adds two things that change nothing for the
others: a user may be cut into chunks, each of which sees those before it, and more questions
(branches) may be asked than a server asks, because nobody sees a question.
"""

import numpy as np


class Plan:
    """Segments: tokens, where they start, what they see."""

    def __init__(self):
        self.tokens, self.starts, self.sees, self.first, self.size = [], [], [], [], 0

    def add(self, tokens, start, sees):
        """Appends a segment; returns its index and the position after it."""
        self.tokens.append(np.asarray(tokens, dtype=np.int32))
        self.starts.append(start)
        self.sees.append(sees)
        self.first.append(self.size)
        self.size += len(tokens)
        return len(self.tokens) - 1, start + len(tokens)

    def last_row(self, segment):
        """The row of a segment's last token, at which its answer is."""
        return self.first[segment] + len(self.tokens[segment]) - 1

    def rows(self):
        """Returns tokens, segments and positions, one of each per row."""
        lengths = [len(t) for t in self.tokens]
        segments = np.repeat(np.arange(len(lengths), dtype=np.int32), lengths)
        starts, first = np.asarray(self.starts), np.asarray(self.first)
        positions = np.arange(self.size) - np.repeat(first, lengths) + np.repeat(starts, lengths)
        return np.concatenate(self.tokens), segments, positions.astype(np.int32)

    def seen(self):
        """Returns who sees whom: [segment, segment]."""
        out = np.zeros((len(self.tokens), len(self.tokens)), dtype=bool)
        for i, sees in enumerate(self.sees):
            out[i, sees] = True
        return out

    def mask(self):
        """Returns the dense mask: [row, row]. For tests; training makes it on the GPU."""
        _, segments, _ = self.rows()
        same = segments[:, None] == segments[None, :]
        row = np.arange(self.size)
        return self.seen()[segments][:, segments] | (same & (row[None, :] <= row[:, None]))


class Prompts:
    """The fixed parts of a model's prompts, as tokens."""

    def __init__(self, tokens):
        self.preamble = tokens.get("preamble") or []
        self.lead_in = tokens.get("lead_in") or []
        self.instruction = tokens.get("instruction") or []
        self.pointwise = tokens.get("pointwise") or []
        self.generate = tokens.get("generate_instruction") or []

    def begin(self):
        """Starts a plan; returns it, what is seen by all, and the next position."""
        p, sees, pos = Plan(), [], 0
        if len(self.preamble) > 0:
            s, pos = p.add(self.preamble, 0, [])
            sees = [s]
        return p, sees, pos

    def user(self, p, chunks, pos, sees):
        """Adds a user in chunks; returns their indices and the position after them."""
        indices = []
        for c in chunks:
            s, pos = p.add(c, pos, sees + indices)
            indices = indices + [s]
        return indices, pos

    def items(self, p, items, pos, sees):
        """Adds items, all at pos; returns their indices and the position after the longest."""
        indices, end = [], pos
        for it in items:
            s, after = p.add(it, pos, sees)
            indices.append(s)
            end = max(end, after)
        return indices, end

    def line(self, p, items, pos, sees):
        """Adds items one after the other, each of which sees those before it; returns their indices and the
        position after the last."""
        indices = []
        for it in items:
            s, pos = p.add(it, pos, sees + indices)
            indices.append(s)
        return indices, pos

    def questions(self, order, chunks, items, asked, pointwise=None):
        """Lays out a ranking and, in the same plan, pointwise questions about the items in asked, which a causal
        prompt does not have.

        Returns the plan, the user's segments, the instruction and the pointwise questions."""
        if pointwise is None:
            pointwise = self.pointwise
        p, sees, pos = self.begin()
        if order == "user":
            user, pos = self.user(p, chunks, pos, sees)
            head = sees + user
            listed, end = self.items(p, items, pos, head)
            places = [pos + len(items[i]) for i in asked]
        elif order == "causal":
            user, pos = self.user(p, chunks, pos, sees)
            head, places = sees + user, []
            listed, end = self.line(p, items, pos, head)
        else:
            if len(self.lead_in) > 0:
                s, pos = p.add(self.lead_in, pos, sees)
                sees = sees + [s]
            listed, pos = self.items(p, items, pos, sees)
            user, end = self.user(p, chunks, pos, sees + listed)
            head = sees + user
            places = [end for _ in asked]
        instruction = -1
        if len(self.instruction) > 0:
            instruction, _ = p.add(self.instruction, end, head + listed)
        each = []
        for i, at in zip(asked, places):
            s, _ = p.add(pointwise, at, head + [listed[i]])
            each.append(s)
        return p, user, instruction, each

    def generation(self, p, user, upto, codes):
        """Adds a generation to a plan that has the user behind the preamble alone: as if the user ended
        with chunk upto. codes are the tokens of an item, of which the last is only an answer.

        Returns the rows that answer, one per level."""
        before = ([0] if len(self.preamble) > 0 else []) + user[: upto + 1]
        end = user[upto]
        pos = p.starts[end] + len(p.tokens[end])
        s, _ = p.add(list(self.generate) + list(codes[:-1]), pos, before)
        first = p.first[s] + len(self.generate) - 1
        return [first + level for level in range(len(codes))]

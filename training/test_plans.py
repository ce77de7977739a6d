"""Masks and positions of training against those of the server (testdata/plans.json, from a Go test)."""

import json
import os
import unittest

import numpy as np
import torch

from decoder import dense_bias
from plans import Prompts

HERE = os.path.dirname(os.path.abspath(__file__))


def cases():
    with open(os.path.join(HERE, "testdata", "plans.json")) as f:
        return json.load(f)


def lay_out(case, chunks):
    """Returns a plan and the rows that answer, from the prompts of a case."""
    tokens = dict(case["prompts"])
    if case["kind"] == "pointwise":
        tokens["pointwise"] = tokens.pop("instruction")
    prompts = Prompts(tokens)
    if case["kind"] == "generate":
        p, sees, pos = prompts.begin()
        user, _ = prompts.user(p, chunks, pos, sees)
        return p, prompts.generation(p, user, len(chunks) - 1, [0])
    asked = range(len(case["items"])) if case["kind"] == "pointwise" else []
    p, _, instruction, each = prompts.questions(case["order"], chunks, case["items"], asked)
    answers = each if case["kind"] == "pointwise" else [instruction]
    return p, [p.last_row(s) for s in answers]


class TestPlans(unittest.TestCase):
    def check(self, case, chunks):
        p, answers = lay_out(case, chunks)
        tokens, _, positions = p.rows()
        self.assertEqual(case["tokens"], tokens.tolist(), case["name"])
        self.assertEqual(case["positions"], positions.tolist(), case["name"])
        mask = ["".join("1" if x else "0" for x in row) for row in p.mask()]
        self.assertEqual(case["mask"], mask, case["name"])
        self.assertEqual(case["answers"], answers, case["name"])

    def test_as_the_server(self):
        for case in cases():
            self.check(case, [case["user"]])

    def test_chunks_change_nothing(self):
        for case in cases():
            self.check(case, [case["user"][:2], case["user"][2:3], case["user"][3:]])

    def test_a_branch_is_the_generation_of_a_shorter_history(self):
        prompts = Prompts({"preamble": [1], "generate_instruction": [8, 9], "instruction": [4], "pointwise": [5]})
        chunks, codes = [[10, 11], [12], [13, 14]], [90, 91, 92]
        p, user, _, _ = prompts.questions("user", chunks, [[20], [21, 22]], [1])
        rows = prompts.generation(p, user, 1, codes)
        q, sees, pos = prompts.begin()
        short, _ = prompts.user(q, chunks[:2], pos, sees)
        alone = prompts.generation(q, short, 1, codes)
        self.assertEqual(p.rows()[2][rows].tolist(), q.rows()[2][alone].tolist())
        mask, small, tokens = p.mask(), q.mask(), p.rows()[0]
        for row, other in zip(rows, alone):
            self.assertEqual(tokens[mask[row]].tolist(), q.rows()[0][small[other]].tolist())

    def test_the_mask_of_a_batch(self):
        case = next(c for c in cases() if c["kind"] == "pointwise" and c["order"] == "item")
        p, _ = lay_out(case, [case["user"][:3], case["user"][3:]])
        _, segments, _ = p.rows()
        n = p.size
        seen = np.zeros((1, len(p.tokens) + 1, len(p.tokens) + 1), dtype=bool)
        seen[0, :-1, :-1] = p.seen()
        padded = np.full((1, n + 3), len(p.tokens))
        padded[0, :n] = segments
        bias = dense_bias(torch.from_numpy(seen), torch.from_numpy(padded), torch.float32)[0, 0].numpy()
        self.assertTrue(np.array_equal(bias[:n, :n] == 0, p.mask()))
        self.assertFalse((bias[:n, n:] == 0).any(), "a row sees the padding")
        self.assertTrue((bias == 0).any(1).all(), "a row of the padding sees nothing")


if __name__ == "__main__":
    unittest.main()

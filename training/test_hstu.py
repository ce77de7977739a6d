"""What hstu.py computes by parts is what model/hstu/FORMAT.md defines with one mask over all rows."""

import unittest

import torch
import torch.nn.functional as F

from hstu import ACTIONS, HSTU


def small():
    torch.manual_seed(1)
    model = HSTU(30, 5, 24, 2, 3, 40, 8, 16, torch.randint(0, 9, (30, 3)))
    with torch.no_grad():
        for p in (model.norm_b, model.beta, model.out_b, model.post_b):
            p.normal_()
    return model


def dense(model, history, stars, candidates, order):
    """One customer and one list, row by row as the format says: rows, positions and who sees whom, then the layers."""
    items, n, k, d = model.items(), len(history), len(candidates), model.d
    past = items[history] + torch.stack([(stars & w != 0) for w in ACTIONS], -1).float() @ model.action
    offered = items[candidates] + model.target
    first = 0 if order == "user" else k
    content = torch.cat(([] if order == "user" else [offered]) + [past, offered])
    start = 0 if order == "user" else 1
    at = torch.tensor([0] * first + list(range(start, start + n)) + [start + n] * k)
    rows = len(content)
    mask = torch.zeros(rows, rows)
    for i in range(rows):
        for j in range(i + 1):
            in_history, scored = first <= i < first + n, i >= first + n
            of_history, prefix = first <= j < first + n, j < first
            sees = i == j or (in_history and (prefix or of_history)) or (scored and of_history)
            mask[i, j] = sees or (scored and prefix and i - first - n == j)
    x = d**0.5 * content + model.position[at]
    for layer in range(model.depth):
        y = F.layer_norm(x, (d,), model.norm_w[layer], model.norm_b[layer], 1e-6) @ model.uvqk[layer] + model.beta[layer]
        u, v, q, key = (t.reshape(rows, model.heads, -1).transpose(0, 1) for t in y.split(d, -1))
        scores = F.silu(q @ key.transpose(-1, -2) * (d // model.heads) ** -0.5) / model.scale * mask
        got = (scores @ v).transpose(0, 1).reshape(rows, d)
        u = F.silu(u).transpose(0, 1).reshape(rows, d)
        normed = F.layer_norm(got, (d,), model.out_w[layer], model.out_b[layer], 1e-6)
        x = x + torch.cat((u, got, u * normed), -1) @ model.out[layer]
    x = F.layer_norm(x, (d,), model.post_w, model.post_b, 1e-5)
    return x[first : first + n], x[-k:]


class Parts(unittest.TestCase):
    def test_parts_are_the_definition(self):
        model = small()
        history, stars = torch.randint(0, 35, (2, 7)), torch.randint(0, 6, (2, 7))
        lengths, candidates = torch.tensor([7, 4]), torch.randint(0, 30, (2, 1, 5))
        for order in ("user", "item"):
            past, states = model(model.items(), history, stars, lengths[:, None], candidates, order, torch.float32)
            for b, n in enumerate(lengths.tolist()):
                want_past, want = dense(model, history[b, :n], stars[b, :n], candidates[b, 0], order)
                torch.testing.assert_close(states[b, 0], want, rtol=1e-4, atol=1e-4)
                if past is not None:
                    torch.testing.assert_close(past[b, :n], want_past, rtol=1e-4, atol=1e-4)

    def test_questions_of_one_pass_do_not_see_each_other(self):
        model = small()
        history, stars = torch.randint(0, 35, (1, 7)), torch.randint(0, 6, (1, 7))
        candidates, seen = torch.randint(0, 30, (1, 3, 5)), torch.tensor([[2, 5, 7]])
        _, states = model(model.items(), history, stars, seen, candidates, "user", torch.float32)
        for q, n in enumerate(seen[0].tolist()):
            _, want = dense(model, history[0, :n], stars[0, :n], candidates[0, q], "user")
            torch.testing.assert_close(states[0, q], want, rtol=1e-4, atol=1e-4)


if __name__ == "__main__":
    unittest.main()

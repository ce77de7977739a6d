"""Residual k-means in PyTorch, to judge grebe codes by: plain Lloyd passes over all rows, in float32 on a GPU.

    grebe-bench codes --write rows.npy
    python3 bench/codes/reference.py rows.npy

Each level starts several times from random rows and keeps the best run. A run ends when a pass lowers the error by less
than one in a million, or after 100 passes. Errors are shares of the variance, as grebe-bench codes prints them.
"""

import argparse
import ast
import time

import torch


def load(name):
    """Return the values of a .npy file of float32."""
    with open(name, "rb") as f:
        data = bytearray(f.read())
    head = 10 + int.from_bytes(data[8:10], "little")
    shape = ast.literal_eval(data[10:head].decode())["shape"]
    return torch.frombuffer(data, dtype=torch.float32, offset=head).reshape(shape)


def nearest(rows, centroids, block=1 << 18):
    """Return the nearest centroid of each row, and the squared distances."""
    half = (centroids * centroids).sum(1) / 2
    codes, squares = [], []
    for part in rows.split(block):
        best = (part @ centroids.T - half).max(1)
        codes.append(best.indices)
        squares.append((part * part).sum(1) - 2 * best.values)
    return torch.cat(codes), torch.cat(squares).clamp_(min=0)


def lloyd(rows, k, generator, passes=100, least=1e-6):
    """Return the centroids of one run, and the sum of squared distances to them."""
    first = torch.randperm(len(rows), generator=generator)[:k]
    centroids = rows[first.to(rows.device)].clone()
    last = float("inf")
    for n in range(passes):
        codes, squares = nearest(rows, centroids)
        now = squares.double().sum().item()
        if last - now <= least * now or n == passes - 1:
            return centroids, now
        last = now
        sums = torch.zeros_like(centroids, dtype=torch.float64)
        for at in range(0, len(rows), 1 << 18):
            sums.index_add_(0, codes[at : at + (1 << 18)], rows[at : at + (1 << 18)].double())
        counts = torch.bincount(codes, minlength=k)
        some = counts > 0
        centroids[some] = (sums[some] / counts[some, None]).float()


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("rows", help="embeddings, a .npy file of float32")
    p.add_argument("--sizes", default="256,256,256", help="codes of each level")
    p.add_argument("--starts", type=int, default=5, help="runs of each level")
    p.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    a = p.parse_args()
    torch.backends.cuda.matmul.allow_tf32 = False
    rows = load(a.rows).to(a.device)
    mean = rows.double().mean(0).float()
    spread = sum(((part - mean).double() ** 2).sum().item() for part in rows.split(1 << 18))
    print(f"{rows.shape[0]} rows of {rows.shape[1]} values, {a.device}")
    for level, k in enumerate(map(int, a.sizes.split(","))):
        begun, best, errors = time.time(), None, []
        for start in range(a.starts):
            generator = torch.Generator().manual_seed(1000 * level + start)
            centroids, squares = lloyd(rows, k, generator)
            errors.append(squares / spread)
            if best is None or squares < best[1]:
                best = centroids, squares
        codes, _ = nearest(rows, best[0])
        for at in range(0, len(rows), 1 << 18):
            rows[at : at + (1 << 18)] -= best[0][codes[at : at + (1 << 18)]]
        error = sum((part.double() ** 2).sum().item() for part in rows.split(1 << 18)) / spread
        runs = " ".join(f"{e:.5f}" for e in sorted(errors))
        print(f"level {level + 1}: {k} codes, error {error:.5f}, runs {runs}, {time.time() - begun:.1f} s", flush=True)


if __name__ == "__main__":
    main()

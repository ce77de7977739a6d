"""Semantic IDs: residual k-means over item vectors, each ID unique."""

import numpy as np
import torch


def kmeans(x, k, generator, rounds=40):
    """Returns centres and the nearest of each row. Empty clusters take the rows that lie farthest."""
    k = min(k, len(x))
    centres = x[torch.randperm(len(x), generator=generator)[:k].to(x.device)].clone()
    for _ in range(rounds):
        near = torch.cdist(x, centres).argmin(1)
        count = torch.bincount(near, minlength=k)
        sums = torch.zeros_like(centres).index_add_(0, near, x)
        centres = torch.where(count[:, None] > 0, sums / count.clamp(min=1)[:, None], centres)
        empty = (count == 0).nonzero()[:, 0]
        if len(empty) > 0:
            far = (x - centres[near]).pow(2).sum(1).topk(len(empty)).indices
            centres[empty] = x[far]
    return centres, torch.cdist(x, centres).argmin(1)


def assign(vectors, sizes, seed):
    """Returns codes [items, levels]. Each level's centres are those of what the levels before leave over, the
    same ones in every cell, so that a code means much the same everywhere. The second to last level puts no
    more items into a cell than the last can tell apart, and the last no two under one code: those that
    fit worst go to the next nearest centre."""
    g = torch.Generator().manual_seed(seed)
    x = vectors.float()
    codes = torch.zeros((len(x), len(sizes)), dtype=torch.long, device=x.device)
    cell = torch.zeros(len(x), dtype=torch.long, device=x.device)
    for level, size in enumerate(sizes):
        centres, near = kmeans(x, size, g)
        room = {len(sizes) - 2: sizes[-1], len(sizes) - 1: 1}.get(level)
        if room is not None:
            near = bounded(cell, torch.cdist(x, centres), room).to(x.device)
        codes[:, level] = near
        cell = cell * size + near
        x = x - centres[near]
    if len(torch.unique(codes, dim=0)) != len(codes):
        raise ValueError("codes: an ID is not unique")
    return codes


def bounded(cell, distance, most):
    """Assigns rows to the nearest centre that has room within the row's cell."""
    cell, distance = cell.cpu().numpy(), distance.cpu().numpy()
    size = distance.shape[1]
    used = {}
    out = np.zeros(len(cell), dtype=np.int64)
    for i in np.argsort(distance.min(1), kind="stable"):
        for c in np.argsort(distance[i], kind="stable"):
            key = cell[i] * size + c
            if used.get(key, 0) < most:
                used[key] = used.get(key, 0) + 1
                out[i] = c
                break
        else:
            raise ValueError(f"codes: more than {size * most} items in one cell")
    return torch.from_numpy(out)


def begin(embedding, ids, codes, first, sizes):
    """Begins the codes' embeddings as the centres of the items' that have them, less those of the levels before."""
    left = ids.clone()
    for level, size in enumerate(sizes):
        count = torch.bincount(codes[:, level], minlength=size).clamp(min=1)
        centres = torch.zeros((size, ids.shape[1]), device=ids.device).index_add_(0, codes[:, level], left) / count[:, None]
        embedding[first[level] : first[level] + size] = centres
        left = left - centres[codes[:, level]]

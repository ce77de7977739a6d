"""What PyTorch takes for cases of `grebe-bench rows`: EmbeddingBag by sum for each feature, and rows of sequences by
index_select, in CUDA graphs. The argument is JSON: bytes, features, requests, bag, users, events, row_bytes, repeats.
Prints JSON: {"torch": version, "peers": [{"name", "format", "row_bytes", "us"}]}."""
import json
import statistics
import sys

import torch
import torch.nn.functional as F

torch.set_grad_enabled(False)
o = json.loads(sys.argv[1])


filler = torch.empty(min(o["bytes"], 512 << 20), device="cuda", dtype=torch.uint8)


def micros(f):
    side = torch.cuda.Stream()
    torch.cuda.synchronize()  # ids are made on another stream
    with torch.cuda.stream(side):
        for _ in range(3):
            f()
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        f()
    times = []
    for _ in range(o["repeats"]):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        filler.zero_()  # as in the bench: nothing is in caches, and the launch does not wait for the host
        begin.record()
        graph.replay()
        end.record()
        torch.cuda.synchronize()
        times.append(1000 * begin.elapsed_time(end))
    return statistics.median(times)


def table(rows, row_bytes, dtype):
    return torch.randn(rows, row_bytes // dtype.itemsize, device="cuda", dtype=dtype)


peers = []
for name, dtype in (("bf16", torch.bfloat16), ("f32", torch.float32)):
    for size in o["row_bytes"]:
        rows = o["bytes"] // (o["features"] * size) + 1
        tables = [table(rows, size, dtype) for _ in range(o["features"])]
        bags = []
        for _ in tables:
            lengths = torch.randint(0, 2 * o["bag"] + 1, (o["requests"],), device="cuda")
            ids = torch.randint(0, rows, (int(lengths.sum()),), device="cuda", dtype=torch.int32)
            bags.append((ids, (torch.cumsum(lengths, 0) - lengths).int()))
        us = micros(lambda: [F.embedding_bag(i, t, s, mode="sum") for t, (i, s) in zip(tables, bags)])
        peers.append({"name": "pooled, sum", "format": name, "row_bytes": size, "us": us})
        del tables, bags
        whole = table(o["bytes"] // size, size, dtype)
        ids = torch.randint(0, len(whole), (o["users"] * o["events"],), device="cuda", dtype=torch.int32)
        us = micros(lambda: torch.index_select(whole, 0, ids))
        peers.append({"name": "sequences", "format": name, "row_bytes": size, "us": us})
        del whole, ids
        torch.cuda.empty_cache()
print(json.dumps({"torch": torch.__version__, "peers": peers}))

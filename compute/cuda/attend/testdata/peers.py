"""Times PyTorch's attention on the batches of TestTimes: a layer each, in CUDA graphs, medians.

With a file name as argument it waits until the file exists before it touches the GPU."""
import os, sys, time, torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.attention.bias import causal_lower_right

LAYERS, RUNS = 8, 25


def measure(call, sets):
    s = torch.cuda.Stream()
    with torch.cuda.stream(s):
        for x in sets:
            call(*x)
        g = torch.cuda.CUDAGraph()
        with torch.cuda.graph(g, stream=s):
            for x in sets:
                call(*x)
        times = []
        for i in range(RUNS + 3):
            a, b = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            a.record(s)
            g.replay()
            b.record(s)
            b.synchronize()
            times.append(a.elapsed_time(b) * 1e3 / LAYERS)
    return sorted(times[3:])[RUNS // 2]


def report(name, rows, keys, heads, kv_heads, pairs, causal):
    for label, backend in (("flash", SDPBackend.FLASH_ATTENTION), ("cudnn", SDPBackend.CUDNN_ATTENTION)):
        try:
            make = lambda h, n: torch.randn(1, h, n, 128, device="cuda", dtype=torch.bfloat16)
            sets = [(make(heads, rows), make(kv_heads, keys), make(kv_heads, keys)) for _ in range(LAYERS)]
            mask = None if not causal or rows == keys else causal_lower_right(rows, keys)
            call = lambda q, k, v: F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=causal and mask is None, enable_gqa=heads != kv_heads)
            with torch.no_grad(), sdpa_kernel(backend):
                us = measure(call, sets)
            print(f"{name:26} torch {label:6} {us:7.2f} µs {pairs * heads * 128 * 4 / us / 1e6:6.1f} TFLOP/s", flush=True)
        except Exception as e:
            print(f"{name:26} torch {label:6} failed: {str(e)[:200]}", flush=True)


while len(sys.argv) > 1 and not os.path.exists(sys.argv[1]):
    time.sleep(0.1)
for n in (256, 1024, 4096, 8192):
    report(f"causal {n:,}", n, n, 12, 2, n * (n + 1) / 2, True)
report("item-first 1,500 + 1,000", 1500, 2500, 12, 2, 1500 * 1000 + 1500 * 1501 / 2, True)
for n in (1000, 4000):
    report(f"beams 512 behind {n:,}", 1024, n, 8, 8, 1024 * n, False)

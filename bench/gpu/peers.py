"""Prefill of a Qwen2-1.5B of random weights by transformers on PyTorch: eager with sdpa, compiled, and
compiled with CUDA graphs. Prints JSON: [{"name", "tokens", "ms"}], medians of 20 after warming up.
Compiling takes long: with PEER_SECONDS in the environment nothing more is compiled after that time."""
import json
import os
import statistics
import sys
import time

import torch
from transformers import Qwen2Config, Qwen2ForCausalLM

torch.manual_seed(1)
torch.set_grad_enabled(False)
config = Qwen2Config(hidden_size=1536, num_hidden_layers=28, num_attention_heads=12, num_key_value_heads=2,
                     intermediate_size=8960, vocab_size=151936, max_position_embeddings=131072, rope_theta=1e6,
                     tie_word_embeddings=True, attn_implementation="sdpa")
with torch.device("cuda"):
    torch.set_default_dtype(torch.bfloat16)
    model = Qwen2ForCausalLM(config).eval()


def forward(ids):
    return model(input_ids=ids, use_cache=False, logits_to_keep=1).logits


def measure(f, ids):
    for _ in range(5):
        f(ids)
    torch.cuda.synchronize()
    times = []
    for _ in range(20):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        f(ids)
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end))
    return statistics.median(times)


deadline = time.monotonic() + float(os.environ.get("PEER_SECONDS", "inf"))
results = []
prompts = [torch.randint(0, 151936, (1, int(tokens)), device="cuda") for tokens in sys.argv[1:]]
for ids in prompts:
    results.append({"name": "transformers, sdpa", "tokens": ids.shape[1], "ms": measure(forward, ids)})
for name, mode in (("torch.compile, CUDA graphs", "reduce-overhead"), ("torch.compile", "default")):
    for ids in prompts:
        if time.monotonic() > deadline:
            continue
        torch._dynamo.reset()
        compiled = torch.compile(forward, mode=mode, dynamic=False)
        try:
            results.append({"name": name, "tokens": ids.shape[1], "ms": measure(compiled, ids)})
        except Exception as e:
            print(f"{name} at {ids.shape[1]} tokens: {e}", file=sys.stderr)
json.dump(results, sys.stdout)

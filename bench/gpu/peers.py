"""What PyTorch and transformers take for the lines of `grebe-bench gpu`, on the same machine. Prints JSON:
{"torch": versions, "peers": [{"line", "name", "value"}]}, medians after warming up; prefill in milliseconds by the
GPU's own clock, single operations in microseconds in CUDA graphs.

Arguments are lengths of prompts. Compiled models are compiled side by side, each in a process of its own, before
anything is timed; then all take turns. Compiling takes long: PEER_SECONDS in the environment (300) bounds it, and
lengths above PEER_COMPILE (1024) are not compiled. A file that PEER_GO names is waited for before anything is timed."""
import json
import os
import statistics
import subprocess
import sys
import time

import torch
import torch.nn.functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel

torch.manual_seed(1)
torch.set_grad_enabled(False)
GRAPHS = "torch.compile, CUDA graphs"
MODES = {GRAPHS: "reduce-overhead", "torch.compile": "default"}
REPEATS = 20


def median(times):
    return statistics.median(times)


def elapsed(f, repeats=REPEATS):
    """Milliseconds of f on the GPU."""
    for _ in range(5):
        f()
    torch.cuda.synchronize()
    times = []
    for _ in range(repeats):
        begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        begin.record()
        f()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end))
    return median(times)


def model():
    from transformers import Qwen2Config, Qwen2ForCausalLM

    config = Qwen2Config(hidden_size=1536, num_hidden_layers=28, num_attention_heads=12, num_key_value_heads=2,
                         intermediate_size=8960, vocab_size=151936, max_position_embeddings=131072, rope_theta=1e6,
                         tie_word_embeddings=True, attn_implementation="sdpa")
    torch.set_default_dtype(torch.bfloat16)
    with torch.device("cuda"):
        return Qwen2ForCausalLM(config).eval()


def forward_of(m):
    return lambda ids: m(input_ids=ids, use_cache=False, logits_to_keep=1).logits


def prompt(tokens):
    return torch.randint(0, 151936, (1, tokens), device="cuda")


def compiled(name, tokens):
    """A child: compiles, says so, and measures when it is told to."""
    out, sys.stdout = sys.stdout, sys.stderr  # what libraries print is no answer
    f, ids = torch.compile(forward_of(model()), mode=MODES[name], dynamic=False), prompt(tokens)
    for _ in range(3):
        f(ids)
    torch.cuda.synchronize()
    print("ready", file=out, flush=True)
    sys.stdin.readline()
    print(json.dumps(elapsed(lambda: f(ids))), file=out, flush=True)


def start(name, tokens):
    return subprocess.Popen([sys.executable, __file__, "--compiled", name, str(tokens)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                            env={"TORCHINDUCTOR_COMPILE_THREADS": "4", **os.environ})


def ready(child, deadline):
    """Waits for a child; one that is late is ended."""
    import select

    while time.monotonic() < deadline:
        if select.select([child.stdout], [], [], 0.2)[0]:
            return child.stdout.readline().strip() == "ready"
    child.kill()
    return False


def prefill(lengths):
    results = []
    # Without CUDA graphs a short prompt takes as long as the host takes to launch it.
    children = [(name, n, start(name, n)) for n in lengths if n <= int(os.environ.get("PEER_COMPILE", "1024")) for name in MODES if name == GRAPHS or n >= 1024]
    deadline = time.monotonic() + float(os.environ.get("PEER_SECONDS", "300"))
    children = [(name, n, c) for name, n, c in children if ready(c, deadline)]
    f = forward_of(model())
    while "PEER_GO" in os.environ and not os.path.exists(os.environ["PEER_GO"]):
        time.sleep(0.1)
    for n in lengths:
        ids = prompt(n)
        results.append((f"prefill-{n}", "transformers, sdpa", elapsed(lambda: f(ids))))
    for name, n, c in children:
        answer, _ = c.communicate("go\n")
        results.append((f"prefill-{n}", name, json.loads(answer)))
    return results


def graph_us(call, sets):
    """Microseconds of call on each of sets, in one graph."""
    s = torch.cuda.Stream()
    with torch.cuda.stream(s):
        for x in sets:
            call(*x)
        torch.cuda.synchronize()
        g = torch.cuda.CUDAGraph()
        with torch.cuda.graph(g, stream=s):
            for x in sets:
                call(*x)
        return elapsed(g.replay) * 1e3 / len(sets)


def attention(context, width=512, heads=16, kv_heads=8, dim=128):
    """Beams behind a context: on copies of the context for each beam, and all beams as the queries of one call,
    which leaves out what each beam has of its own."""
    make = lambda *shape: torch.randn(*shape, device="cuda", dtype=torch.bfloat16)
    line, results = f"beams-{context}", []
    sdpa = lambda q, k, v: F.scaled_dot_product_attention(q, k, v, enable_gqa=q.shape[1] != k.shape[1])
    own = [(make(width, heads, 1, dim), make(width, kv_heads, context + 3, dim), make(width, kv_heads, context + 3, dim)) for _ in range(2)]
    results.append((line, "sdpa on copies per beam", graph_us(sdpa, own)))
    del own
    group = heads // kv_heads
    for name, backend in (("one call, shared keys only, flash", SDPBackend.FLASH_ATTENTION), ("the same, cuDNN", SDPBackend.CUDNN_ATTENTION)):
        sets = [(make(1, kv_heads, width * group, dim), make(1, kv_heads, context, dim), make(1, kv_heads, context, dim)) for _ in range(8)]
        with sdpa_kernel(backend):
            results.append((line, name, graph_us(sdpa, sets)))
    return results


def selection(beams=512, codes=8192, width=512):
    logits = [(torch.randn(beams, codes, device="cuda") * 3,) for _ in range(4)]

    def twice(x):
        values, _ = torch.topk(x, width, dim=1)
        torch.topk(values.view(-1), width)

    second = [(torch.randn(beams * width, device="cuda"),) for _ in range(4)]
    return [("select", "torch.topk twice", graph_us(twice, logits)), ("select", "the second alone", graph_us(lambda x: torch.topk(x, width), second))]


def attempt(results, f, *args):
    try:
        results.extend(f(*args))
    except Exception as e:  # a peer that fails is left out
        print(f"peers: {f.__name__} {args}: {e}", file=sys.stderr)


def main():
    import transformers

    results = []
    attempt(results, prefill, [int(a) for a in sys.argv[1:]])
    torch.set_default_dtype(torch.float32)
    torch.cuda.empty_cache()
    for context in (1000, 4000):
        attempt(results, attention, context)
    attempt(results, selection)
    versions = f"PyTorch {torch.__version__}, CUDA {torch.version.cuda}, transformers {transformers.__version__}"
    json.dump({"torch": versions, "peers": [{"line": l, "name": n, "value": v} for l, n, v in results]}, sys.stdout)


if sys.argv[1:2] == ["--compiled"]:
    compiled(sys.argv[2], int(sys.argv[3]))
else:
    main()

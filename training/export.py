"""Puts a trained language model into a folder that grebe serves: checkpoint, tokenizer, items with codes,
configuration.

    python3 export.py --data arrays --model model --out shop
    grebe eval -c shop/grebe.yaml
"""

import argparse
import json
import os
import shutil

import numpy as np

CONFIG = """# The shop of workload/shop, with the model that training/lm.py trained for it.
models:
  - name: shop
    path: ./lm
    prompt:
      preamble: {preamble}
      user: {user}
      item: {item}
      lead_in: {lead_in}
      instruction: {instruction}
      generate_instruction: {generate_instruction}
    scoring: {{kind: identifier}}
    codes: {{first_token: {first}, size: {sizes}}}
  - name: shop-pointwise
    path: ./lm
    prompt:
      preamble: {preamble}
      user: {user}
      item: {item}
      lead_in: {lead_in}
      instruction: {pointwise}
    scoring: {{kind: pointwise, "yes": {yes}, "no": {no}}}
{more}cache: {{host_memory: 256MiB}}
catalog: {{items: items.ndjson}}
"""


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--data", required=True)
    p.add_argument("--model", required=True)
    p.add_argument("--out", required=True)
    a = p.parse_args()
    with open(os.path.join(a.data, "meta.json")) as f:
        meta = json.load(f)
    folder = os.path.join(a.out, "lm")
    os.makedirs(folder, exist_ok=True)
    for name in ("config.json", "model.safetensors"):
        shutil.copy(os.path.join(a.model, name), folder)
    shutil.copy(os.path.join(a.data, "tokenizer.json"), folder)
    write_items(a.data, np.load(os.path.join(a.model, "codes.npy")), os.path.join(a.out, "items.ndjson"))
    write_config(meta, os.path.join(a.out, "grebe.yaml"))


def write_items(data, codes, path):
    with open(os.path.join(data, "items.ndjson")) as f, open(path, "w") as out:
        for line, c in zip(f, codes):
            item = json.loads(line)
            item["codes"] = [int(x) for x in c]
            out.write(json.dumps(item, ensure_ascii=False, separators=(",", ":")) + "\n")


def write_config(meta, path, more=""):
    prompts = {k: json.dumps(v) for k, v in meta["prompts"].items()}
    text = CONFIG.format(first=meta["first_code"], sizes=meta["levels"], yes=meta["yes"], no=meta["no"], more=more, **prompts)
    with open(path, "w") as f:
        f.write(text)


if __name__ == "__main__":
    main()

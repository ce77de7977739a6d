"""Puts trained models into a folder that grebe serves: checkpoints, tokenizer, items with codes, configuration.

    python3 export.py --data arrays --model lm --hstu hstu --out shop
    grebe eval -c shop/grebe.yaml
"""

import argparse
import json
import os
import shutil

import numpy as np

CONFIG = """# The invented shop, with the models that training/ trained for it.
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
{hstu}cache: {{host_memory: 256MiB}}
catalog: {{items: items.ndjson}}
"""

HSTU = """  - name: shop-hstu
    path: ./hstu
"""


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--data", required=True)
    p.add_argument("--model", required=True)
    p.add_argument("--hstu", default="", help="folder of hstu.py")
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
    if a.hstu:
        os.makedirs(os.path.join(a.out, "hstu"), exist_ok=True)
        for name in ("config.json", "model.safetensors", "items.json"):
            shutil.copy(os.path.join(a.hstu, name), os.path.join(a.out, "hstu"))
    write_config(meta, os.path.join(a.out, "grebe.yaml"), HSTU if a.hstu else "")


def write_items(data, codes, path):
    with open(os.path.join(data, "items.ndjson")) as f, open(path, "w") as out:
        for line, c in zip(f, codes):
            item = json.loads(line)
            item["codes"] = [int(x) for x in c]
            out.write(json.dumps(item, ensure_ascii=False, separators=(",", ":")) + "\n")


def write_config(meta, path, hstu):
    prompts = {k: json.dumps(v) for k, v in meta["prompts"].items()}
    text = CONFIG.format(first=meta["first_code"], sizes=meta["levels"], yes=meta["yes"], no=meta["no"], hstu=hstu, **prompts)
    with open(path, "w") as f:
        f.write(text)


if __name__ == "__main__":
    main()

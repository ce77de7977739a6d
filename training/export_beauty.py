"""Puts a model of beauty.py into a folder that grebe serves, with the people and what each bought last, for grebe eval.

    python3 export_beauty.py --data ../../shared/data/beauty --model beauty --out served
    grebe eval -c served/grebe.yaml --items-file served/items.ndjson --users-file served/users.ndjson --ways user,beam

There is no tokenizer: identifiers stand for items, in histories and lists. Each person's last purchase is the answer; grebe eval
holds it out, and draws the other 99 candidates of a list from all items.
"""

import argparse
import json
import os
import shutil

import numpy as np

from beauty import FIRST, LEVELS, LONGEST, NEXT, START, TAKE, Data

CONFIG = """# Amazon Beauty, with a model of training/beauty.py.
models:
  - name: beauty
    path: ./model
    prompt:
      preamble: {{tokens: [{start}]}}
      user: "{{history}}"
      history: identifier
      separator: ""
      instruction: {{tokens: [{take}]}}
      generate_instruction: {{tokens: [{next}]}}
    scoring: {{kind: identifier}}
    codes: {{first_token: {first}, size: {sizes}}}
cache: {{host_memory: 256MiB}}
catalog: {{items: items.ndjson}}
"""


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--data", required=True)
    p.add_argument("--model", required=True)
    p.add_argument("--out", required=True)
    a = p.parse_args()
    data, codes = Data(a.data), np.load(os.path.join(a.model, "codes.npy"))
    os.makedirs(os.path.join(a.out, "model"), exist_ok=True)
    for name in ("config.json", "model.safetensors"):
        shutil.copy(os.path.join(a.model, name), os.path.join(a.out, "model"))
    with open(os.path.join(a.out, "items.ndjson"), "w") as f:
        for i, (asin, title) in enumerate(zip(data.ids, data.titles)):
            item = {"id": asin, "text": title, "tokens": [FIRST + i], "identifier": FIRST + i, "codes": [int(c) for c in codes[i]]}
            f.write(json.dumps(item, ensure_ascii=False, separators=(",", ":")) + "\n")
    with open(os.path.join(a.out, "users.ndjson"), "w") as f:
        for n, bought in enumerate(data.people):
            user = {"id": f"p{n + 1}", "history": [data.ids[i] for i in bought[-LONGEST - 1 :]]}
            f.write(json.dumps(user, separators=(",", ":")) + "\n")
    with open(os.path.join(a.out, "grebe.yaml"), "w") as f:
        f.write(CONFIG.format(start=START, take=TAKE, next=NEXT, first=data.first_code, sizes=list(LEVELS)))


if __name__ == "__main__":
    main()

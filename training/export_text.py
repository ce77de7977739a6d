"""Puts a model of beauty_text.py into a folder that grebe serves, with the people who were held out and what they are asked.

    python3 export_text.py --data ../../shared/data/beauty --arrays titles --model beauty-text --out served-text
    grebe-bench blend quality -c served-text/grebe.yaml --users-file served-text/users-test.ndjson \\
        --requests-file served-text/requests-test.ndjson --pool-file served-text/users-train.ndjson --pool-users 4000

users-train.ndjson has people who were trained on, for prototypes.
"""

import argparse
import json
import os
import shutil

from titles import LONGEST, Catalog, People

CONFIG = """# Amazon Beauty as text, with a model of training/beauty_text.py.
models:
  - name: beauty-text
    path: ./model
    prompt:
      preamble: {preamble}
      user: {user}
      item: {item}
      lead_in: {lead_in}
      instruction: {instruction}
    scoring: {{kind: identifier}}
cache: {{host_memory: 256MiB}}
catalog: {{items: items.ndjson}}
"""


class Texts:
    def __init__(self, arrays, people):
        self.world, self.people = Catalog(arrays), people
        with open(os.path.join(arrays, "items.ndjson")) as f:
            self.items = [json.loads(line) for line in f]

    def user(self, u, bought):
        told = [self.items[i] for i in bought[-LONGEST:]]
        text = self.world.meta["head"] + "".join(f"- {it['text']}\n" for it in told)
        return {"id": f"p{u + 1}", "history": [it["id"] for it in told], "text": text}

    def request(self, u):
        bought, ids = self.people.data.people[u], [self.items[i]["id"] for i in self.people.offers[u]]
        return {"user": f"p{u + 1}", "candidates": ids, "chosen": self.items[bought[-1]]["id"], "next": self.items[bought[-1]]["id"]}


def write(path, values):
    with open(path, "w") as f:
        for v in values:
            f.write(json.dumps(v, ensure_ascii=False, separators=(",", ":")) + "\n")


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--data", required=True)
    p.add_argument("--arrays", required=True)
    p.add_argument("--model", required=True)
    p.add_argument("--out", required=True)
    p.add_argument("--train", type=int, default=8000, help="people to make prototypes of")
    a = p.parse_args()
    people = People(a.data)
    texts = Texts(a.arrays, people)
    folder = os.path.join(a.out, "model")
    os.makedirs(folder, exist_ok=True)
    for name in ("config.json", "model.safetensors"):
        shutil.copy(os.path.join(a.model, name), folder)
    shutil.copy(os.path.join(a.arrays, "tokenizer.json"), folder)
    shutil.copy(os.path.join(a.arrays, "items.ndjson"), a.out)
    for name, users in (("validation", people.validation), ("test", people.test)):
        write(os.path.join(a.out, f"users-{name}.ndjson"), (texts.user(u, people.data.people[u][:-1]) for u in users))
        write(os.path.join(a.out, f"requests-{name}.ndjson"), (texts.request(u) for u in users))
    write(os.path.join(a.out, "users-train.ndjson"), (texts.user(u, people.data.people[u]) for u in people.train[: a.train]))
    prompts = {k: json.dumps(v) for k, v in texts.world.meta["prompts"].items()}
    with open(os.path.join(a.out, "grebe.yaml"), "w") as f:
        f.write(CONFIG.format(**prompts))


if __name__ == "__main__":
    main()

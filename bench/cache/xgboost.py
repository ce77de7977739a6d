# Trains XGBoost on samples that "grebe-bench cache --xgboost" wrote, and prints its times and error as JSON.
import json
import sys
import time

import numpy
import xgboost

p = json.loads(sys.argv[1])


def read(name):
    return numpy.fromfile(p["dir"] + "/" + name, dtype="<f4")


x, testx = (read(n).reshape(-1, p["features"]) for n in ("x", "testx"))
y, testy = read("y"), read("testy")
params = {
    "tree_method": "hist", "max_bin": 64, "max_depth": p["depth"], "eta": p["rate"], "lambda": p["lambda"],
    "min_child_weight": p["leaf"], "subsample": p["share"], "base_score": float(y.mean()), "nthread": 1,
    "objective": "reg:squarederror", "seed": 1,
}
times, ns = [], []
for _ in range(p["rounds"]):
    start = time.perf_counter()
    model = xgboost.train(params, xgboost.DMatrix(x, label=y, nthread=1), p["trees"])
    times.append(1e3 * (time.perf_counter() - start))
    start = time.perf_counter()
    for i in range(100):
        model.inplace_predict(testx[64 * i : 64 * i + 64])
    ns.append(1e9 * (time.perf_counter() - start) / 6400)
error = model.predict(xgboost.DMatrix(testx)) - testy
print(json.dumps({
    "version": xgboost.__version__, "train_ms": float(numpy.median(times)), "best_ms": min(times),
    "predict_ns": float(numpy.median(ns)), "rmse": float(numpy.sqrt((error * error).mean())),
}))

package cache

import (
	"bufio"
	"context"
	_ "embed"
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"grebe/evict"
)

// XGBoost is its model of the same samples.
type XGBoost struct {
	Version   string  `json:"version"`
	TrainMs   float64 `json:"train_ms"`
	BestMs    float64 `json:"best_ms"`
	PredictNs float64 `json:"predict_ns"` // per prediction in batches of 64
	RMSE      float64 `json:"rmse"`
}

//go:embed xgboost.py
var script string

// xgboost trains it with the same trees, depth, rate and penalties in a process of its own; a reason instead when it
// cannot.
func xgboost(ctx context.Context, python string, xs []evict.Sample, ys []float32, testX []evict.Sample,
	testY []float32) (*XGBoost, string, error) {
	dir, err := os.MkdirTemp("", "grebe-xgboost-*")
	if err != nil {
		return nil, "", err
	}
	defer os.RemoveAll(dir)
	files := []struct {
		name string
		data any
	}{{"x", xs}, {"y", ys}, {"testx", testX}, {"testy", testY}}
	for _, f := range files {
		if err := writeBinary(filepath.Join(dir, f.name), f.data); err != nil {
			return nil, "", err
		}
	}
	params, err := json.Marshal(map[string]any{
		"dir": dir, "features": evict.Features, "trees": shape.Trees, "depth": shape.Depth, "rate": shape.Rate,
		"leaf": shape.MinLeaf, "lambda": shape.Lambda, "share": shape.Share, "rounds": trainRounds,
	})
	if err != nil {
		return nil, "", err
	}
	out, err := exec.CommandContext(ctx, python, "-c", script, string(params)).Output()
	if err != nil {
		reason := err.Error()
		if e := (*exec.ExitError)(nil); errors.As(err, &e) {
			lines := strings.Split(strings.TrimSpace(string(e.Stderr)), "\n")
			reason = lines[len(lines)-1]
		}
		return nil, fmt.Sprintf("%s: %s (Debian: python3-xgboost; --python names another)", python, reason), nil
	}
	var x XGBoost
	if err := json.Unmarshal(out, &x); err != nil {
		return nil, "", fmt.Errorf("read what XGBoost printed: %w", err)
	}
	return &x, "", nil
}

func writeBinary(path string, data any) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	w := bufio.NewWriter(f)
	return errors.Join(binary.Write(w, binary.LittleEndian, data), w.Flush(), f.Close())
}

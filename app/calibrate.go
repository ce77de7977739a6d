package app

import (
	"bufio"
	"context"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"grebe/compute"
	"grebe/internal/config"
	"grebe/internal/datadir"
	"grebe/internal/durable"
	"grebe/internal/human"
	"grebe/internal/readfile"
	"grebe/kv"
	"grebe/model"
	"grebe/model/quantise"
	"grebe/plan"
)

// versionOf returns the version of a model's KV and the patterns of the matrices that are not quantised. Where
// weights_keep is auto, a calibration chooses them, unless an earlier start did. KV depends on them.
func (a *App) versionOf(ctx context.Context, cfg *config.Config, mc *config.Model) (plan.Key, []string, error) {
	version, err := checkpointVersion(ctx, cfg, mc, a.device)
	if err != nil || !slices.Equal(mc.WeightsKeep, []string{config.KeepAuto}) {
		return version, mc.WeightsKeep, err
	}
	note, read := hex.EncodeToString(version[:]), readRows(cfg, mc)
	if read < 1 {
		note += "-ranks"
	}
	keep, err := a.calibrated(ctx, cfg, mc, filepath.Join(datadir.Calibrations(cfg.DataDir), note), read)
	if err != nil {
		return plan.Key{}, nil, err
	}
	return kv.KeyOf(version, nil, "\nkept "+strings.Join(keep, "\n")), keep, nil
}

// readRows returns quantise.Calibration.Read of a model. If the model, or another of the same weights, searches for
// items, all rows count.
func readRows(cfg *config.Config, mc *config.Model) float64 {
	key := mc.Sharing()
	for i := range cfg.Models {
		if o := &cfg.Models[i]; o.Name == mc.Name {
			key = o.Sharing() // a reload may bring another path, to one model after the other
		}
	}
	for i := range cfg.Models {
		if o := &cfg.Models[i]; o.HasCodes() && o.Sharing() == key {
			return 1
		}
	}
	return quantise.RankedRows
}

// calibrated returns the patterns in a file, or calibrates and writes them to it. read is quantise.Calibration.Read.
func (a *App) calibrated(ctx context.Context, cfg *config.Config, mc *config.Model, file string, read float64) (
	[]string, error) {
	format := compute.INT8
	if mc.Weights == compute.FP8.String() {
		format = compute.FP8
	}
	described, err := model.ReadConfig(mc.Path)
	if err != nil {
		return nil, err
	}
	if q, ok := a.device.(compute.Quantiser); !ok || !q.Quantises(format) || described.Quantisation != nil {
		a.log.Warn("no calibration: nothing is quantised at load", "model", mc.Name, "weights", mc.Weights)
		return nil, nil
	}
	var keep []string
	if raw, err := readfile.Regular(file, 1<<20); err == nil && json.Unmarshal(raw, &keep) == nil {
		a.log.Info("weights kept by the calibration of an earlier start", "model", mc.Name, "kept", keep)
		return keep, nil
	}
	start := time.Now()
	prompts, err := CalibrationPrompts(mc.Path, cfg.Catalog.Items)
	if err != nil {
		return nil, err
	}
	all, err := quantise.Calibrate(ctx, quantise.Calibration{Dir: mc.Path, Device: a.device, Format: format,
		Prompts: prompts, Read: read})
	if err != nil {
		return nil, err
	}
	logKept(a.log.With("model", mc.Name, "seconds", human.Seconds(time.Since(start))), all)
	keep = quantise.Kept(all)
	raw, err := json.Marshal(keep)
	if err == nil {
		err = durable.MkdirAll(filepath.Dir(file))
	}
	if err == nil {
		err = durable.WriteFile(file, func(w io.Writer) error { _, err := w.Write(raw); return err })
	}
	if err != nil {
		return nil, fmt.Errorf("note which weights are kept: %w", err)
	}
	return keep, nil
}

// logKept logs what a calibration keeps and why.
func logKept(log *slog.Logger, all []quantise.Sensitivity) {
	var kept []string
	share, largest := 0.0, 0.0
	for i := range all {
		s := &all[i]
		if !s.Kept {
			largest = max(largest, s.Error)
			continue
		}
		share += s.Share
		kept = append(kept, fmt.Sprintf("layer %d %s: %.2g", s.Layer, s.Product, s.Error))
	}
	log.Info("weights calibrated: products that are not quantised, and how far each would move the last states",
		"kept", kept, "operations", fmt.Sprintf("%.1f %%", 100*share), "largest_other", fmt.Sprintf("%.2g", largest))
}

// CalibrationPrompts makes prompts from the texts of a catalog's items, or their tokens where they have those. Without
// a file, or without either in it, a default text is used.
func CalibrationPrompts(checkpoint, items string) ([][]int32, error) {
	described, err := model.ReadConfig(checkpoint)
	if err != nil {
		return nil, err
	}
	tok, err := OpenTokenizer(checkpoint)
	if err != nil {
		return nil, err
	}
	var encode func([]int32, string) []int32
	if tok != nil {
		encode = tok.AppendEncode
	}
	var texts []string
	if items != "" {
		var tokens []int32
		if texts, tokens, err = firstItems(items, described.Vocab); err != nil {
			return nil, fmt.Errorf("texts for a calibration: %w", err)
		}
		if len(tokens) > 0 {
			texts, encode = nil, func(dst []int32, _ string) []int32 { return append(dst, tokens...) }
		}
	}
	return quantise.Prompts(encode, texts, described.Vocab), nil
}

// firstItems returns the texts and tokens of the items at the beginning of a file. Lines of other formats are left out.
func firstItems(file string, vocab int) (texts []string, tokens []int32, err error) {
	f, err := os.Open(file)
	if err != nil {
		return nil, nil, err
	}
	defer f.Close()
	const bytes, lines = 1 << 20, 256
	s := bufio.NewScanner(io.LimitReader(f, bytes))
	s.Buffer(nil, bytes)
	for range lines {
		var item struct {
			Text   string  `json:"text"`
			Tokens []int32 `json:"tokens"`
		}
		if !s.Scan() {
			break
		}
		if json.Unmarshal(s.Bytes(), &item) != nil {
			continue
		}
		if item.Text != "" {
			texts = append(texts, item.Text)
		}
		for _, t := range item.Tokens {
			if t >= 0 && int(t) < vocab {
				tokens = append(tokens, t)
			}
		}
	}
	return texts, tokens, nil
}

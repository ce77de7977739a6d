package quantise_test

import (
	"context"
	"math"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"grebe/compute"
	"grebe/compute/cpu"
	"grebe/compute/ref"
	"grebe/model"
	"grebe/model/modeltest"
	"grebe/model/quantise"
	"grebe/model/safetensors"
)

// deep writes a checkpoint of enough layers that one of them is less than a tenth.
func deep(t *testing.T) string {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "model")
	err := modeltest.Write(dir, modeltest.Spec{Architecture: modeltest.Qwen3, Hidden: 32, Layers: 6, Heads: 4, KVHeads: 2,
		HeadDim: 16, Inter: 70, Vocab: 40, DType: compute.BF16, Seed: 8})
	if err != nil {
		t.Fatal(err)
	}
	return dir
}

// plant makes one channel of a layer's feed-forward network a thousand times as large as the others, and its weights
// behind it a thousand times as small. The layer computes the same, but what shares a scale with the channel is lost.
func plant(t *testing.T, dir string, layer string) {
	t.Helper()
	set, err := safetensors.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	var list []safetensors.Named
	for _, name := range set.Names() {
		x, err := set.Flat(name)
		if err != nil {
			t.Fatal(err)
		}
		info, _ := set.Lookup(name)
		values := slices.Clone(safetensors.Floats(x))
		for i := range values {
			switch cols := info.Shape[len(info.Shape)-1]; {
			case name == "model.layers."+layer+".mlp.up_proj.weight" && i/cols == 3:
				values[i] *= 1024
			case name == "model.layers."+layer+".mlp.down_proj.weight" && i%cols == 3:
				values[i] /= 1024
			}
		}
		list = append(list, safetensors.Named{Name: name, DType: compute.BF16, Shape: info.Shape,
			Data: safetensors.Bytes(safetensors.Encode(nil, compute.BF16, values...))})
	}
	if err := set.Close(); err != nil {
		t.Fatal(err)
	}
	if err := safetensors.Write(filepath.Join(dir, safetensors.SingleFile), list); err != nil {
		t.Fatal(err)
	}
}

// A planted outlier is found in both formats, on any device, the same at every call, and named so that it is kept.
func TestCalibrateFindsAnOutlier(t *testing.T) {
	dir := deep(t)
	plant(t, dir, "4")
	device, err := cpu.New(cpu.Options{Threads: 2})
	if err != nil {
		t.Fatal(err)
	}
	defer device.Close()
	for name, c := range map[string]quantise.Calibration{
		"cpu": {Device: device, Format: compute.INT8}, "int8": {Device: ref.New(), Format: compute.INT8},
	} {
		t.Run(name, func(t *testing.T) {
			c.Dir, c.Prompts = dir, quantise.Prompts(nil, nil, 40)
			all, err := quantise.Calibrate(context.Background(), c)
			if err != nil {
				t.Fatal(err)
			}
			again, err := quantise.Calibrate(context.Background(), c)
			if err != nil || !slices.Equal(all, again) {
				t.Errorf("another result: %v, %v", again, err)
			}
			worst, share, kept := all[0], 0.0, 0.0
			for _, s := range all {
				if share += s.Share; s.Kept {
					kept += s.Share
				}
				if s.Error > worst.Error {
					worst = s
				}
			}
			if len(all) != 24 || share < 0.999 || share > 1.001 || kept == 0 || kept > quantise.MostKept {
				t.Errorf("%d products, shares are %v in all and %v kept", len(all), share, kept)
			}
			if worst.Layer != 4 || worst.Product != "down" || !worst.Kept {
				t.Errorf("the worst product is %+v, want down of layer 4, kept", worst)
			}
			if p := regexp.MustCompile(worst.Pattern()); !p.MatchString("model.layers.4.mlp.down_proj.weight") ||
				!slices.Contains(quantise.Kept(all), worst.Pattern()) {
				t.Errorf("pattern %q does not name it", worst.Pattern())
			}
		})
	}
}

// With the products that a calibration names, a model with an outlier is nearer to the one without rounding, quantised
// while it loads and as a written checkpoint, which are the same to the bit.
func TestKeptProductsHelp(t *testing.T) {
	dir := deep(t)
	plant(t, dir, "2")
	all, err := quantise.Calibrate(context.Background(), quantise.Calibration{Dir: dir, Device: ref.New(),
		Format: compute.INT8, Prompts: quantise.Prompts(nil, nil, 40), Read: quantise.RankedRows})
	if err != nil {
		t.Fatal(err)
	}
	keep := quantise.Kept(all)
	want := statesWith(t, dir, model.Options{})
	without := away(statesWith(t, dir, model.Options{Weights: "int8"}), want)
	at := statesWith(t, dir, model.Options{Weights: "int8", Keep: keep})
	if with := away(at, want); !(with < without/2) {
		t.Errorf("%.3g off with products kept, %.3g without", with, without)
	}
	to := dir + "-int8"
	r, err := quantise.Run(quantise.Options{From: dir, To: to, Keep: keep, Read: quantise.RankedRows})
	if err != nil {
		t.Fatal(err)
	}
	share := 0.0
	for i := range all {
		if all[i].Kept {
			share += all[i].Share
		}
	}
	if math.Abs(r.Kept-share) > 1e-9 {
		t.Errorf("the checkpoint keeps %v of the operations, the calibration said %v", r.Kept, share)
	}
	if !slices.Equal(statesWith(t, to, model.Options{}), at) {
		t.Error("the written checkpoint computes something else")
	}
}

// The error of a product is how far the model's last states move when it alone is rounded, in an early layer as well.
func TestCalibrateMeasuresTheEnd(t *testing.T) {
	dir := deep(t)
	plant(t, dir, "1")
	all, err := quantise.Calibrate(context.Background(), quantise.Calibration{Dir: dir, Device: ref.New(),
		Format: compute.INT8, Prompts: [][]int32{{3, 1, 4, 1, 5, 9}}}) // what statesWith computes
	if err != nil {
		t.Fatal(err)
	}
	want := statesWith(t, dir, model.Options{})
	for i := range all {
		s, others := &all[i], []string(nil)
		for k := range all {
			if k != i {
				others = append(others, all[k].Pattern())
			}
		}
		got := statesWith(t, dir, model.Options{Weights: "int8", Keep: others})
		sum, width := 0.0, len(want)/6
		for at := 0; at < len(want); at += width {
			sum += away(got[at:at+width], want[at:at+width]) / away(make([]float32, width), want[at:at+width])
		}
		if moved := math.Sqrt(sum / 6); math.Abs(moved-s.Error) > 1e-4*moved+1e-7 {
			t.Errorf("%s of layer %d: error %.6g, want %.6g", s.Product, s.Layer, s.Error, moved)
		}
	}
}

// Behind the attention of the last layer only rows that are read are computed, so its products cost less there.
func TestShares(t *testing.T) {
	dir := deep(t)
	all, err := quantise.Calibrate(context.Background(), quantise.Calibration{Dir: dir, Device: ref.New(),
		Format: compute.INT8, Prompts: [][]int32{{3, 1, 4}}, Read: quantise.RankedRows})
	if err != nil {
		t.Fatal(err)
	}
	last := len(all) - 4
	for i := range 4 {
		want := all[i].Share
		if all[i].Product != "qkv" {
			want *= quantise.RankedRows
		}
		if got := all[last+i]; got.Product != all[i].Product || math.Abs(got.Share-want) > 1e-12 {
			t.Errorf("%s of the last layer has a share of %v, want %v", got.Product, got.Share, want)
		}
	}
}

func away(got, want []float32) (sum float64) {
	for i := range want {
		d := float64(got[i] - want[i])
		sum += d * d
	}
	return sum
}

func TestCalibrateRefuses(t *testing.T) {
	dir := deep(t)
	prompts := quantise.Prompts(nil, nil, 40)
	stop, cancel := context.WithCancel(context.Background())
	cancel()
	to := dir + "-int8"
	if _, err := quantise.Run(quantise.Options{From: dir, To: to}); err != nil {
		t.Fatal(err)
	}
	for want, c := range map[string]quantise.Calibration{
		"no prompts":         {Dir: dir, Format: compute.INT8},
		"context canceled":   {Dir: dir, Format: compute.INT8, Prompts: prompts},
		"quantised already":  {Dir: to, Format: compute.INT8, Prompts: prompts},
		"no such file":       {Dir: dir + "-none", Format: compute.INT8, Prompts: prompts},
		"fits no vocabulary": {Dir: dir, Format: compute.INT8, Prompts: [][]int32{{40}}},
	} {
		ctx := context.Background()
		if want == "context canceled" {
			ctx = stop
		}
		c.Device = ref.New()
		_, err := quantise.Calibrate(ctx, c)
		if err == nil || want != "fits no vocabulary" && !strings.Contains(err.Error(), want) {
			t.Errorf("error %v, want %q", err, want)
		}
	}
}

// Prompts are made of the texts first, and never depend on anything but the arguments.
func TestPrompts(t *testing.T) {
	letters := func(dst []int32, text string) []int32 {
		for _, c := range []byte(text) {
			dst = append(dst, int32(c))
		}
		return dst
	}
	p := slices.Concat(quantise.Prompts(letters, []string{"ab", "c"}, 256)...)
	if len(p) != 256 || string([]byte{byte(p[0]), byte(p[1]), byte(p[2]), byte(p[3])}) != "ab\nc" {
		t.Errorf("%d tokens, %v", len(p), p[:4])
	}
	for _, encode := range []func([]int32, string) []int32{nil, func(dst []int32, _ string) []int32 { return dst }} {
		for _, token := range slices.Concat(quantise.Prompts(encode, nil, 7)...) {
			if token < 0 || token > 6 {
				t.Fatalf("token %d of a vocabulary of 7", token)
			}
		}
	}
}

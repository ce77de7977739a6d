package config

import (
	"errors"
	"fmt"
	"strings"
	"testing"
)

// with loads a configuration that nothing is wrong with, and one value set in it by a flag.
func with(t *testing.T, path, value string) (*Loaded, error) {
	t.Helper()
	const text = `models: [{name: m, path: x, codes: {pattern: ["<a_%d>", "<b_%d>"]}}]
tables: [{name: rows, dim: 4}, {name: far, dim: 4, store: redis, addresses: ["127.0.0.1:1"]},
  {name: map, dim: 3, store: file, file: f}]
limits: {deadline_ms: 3600000}
`
	return Load(Source{File: write(t, text), Flags: []Setting{{path, value, "flag"}}})
}

// wantFault checks that a value is refused with its path.
func wantFault(t *testing.T, path, value, named string) {
	t.Helper()
	if _, err := with(t, path, value); err == nil || !strings.Contains(err.Error(), named) {
		t.Errorf("%s = %s: error %v, want one that names %s", path, value, err, named)
	}
}

func wantNone(t *testing.T, path, value string) {
	t.Helper()
	if _, err := with(t, path, value); err != nil {
		t.Errorf("%s = %s: %v", path, value, err)
	}
}

// Numbers are taken from their lowest to their highest value and not beyond.
func TestRanges(t *testing.T) {
	for _, c := range []struct {
		path      string
		low, high int
	}{
		{"threads", 0, 1024}, {"slo_ms", 1, 3_600_000}, {"workers", 1, 1024},
		{"engine.max_tokens", 1, 1 << 20}, {"engine.queue", 1, 1 << 20},
		{"limits.in_flight", 1, 1 << 20}, {"limits.shutdown_ms", 1, 3_600_000}, {"limits.drain_ms", 0, 3_600_000},
		{"catalog.versions", 1, 1000}, {"reload.trial_ms", 0, 604_800_000},
		{"tables[0].timeout_ms", 1, 60_000}, {"tables[0].dim", 1, 1 << 18},
	} {
		for _, v := range []int{c.low, c.high} {
			if c.path == "tables[0].dim" && v == 1 {
				continue // odd: the cache needs an even number
			}
			wantNone(t, c.path, fmt.Sprint(v))
		}
		wantFault(t, c.path, fmt.Sprint(c.low-1), c.path)
		wantFault(t, c.path, fmt.Sprint(c.high+1), c.path)
	}
	wantFault(t, "limits.deadline_ms", "0", "limits.deadline_ms")
	wantFault(t, "limits.deadline_ms", "199", "slo_ms") // the default of 200 would be longer
	wantNone(t, "limits.deadline_ms", "200")
	wantFault(t, "models[0].codes.size", "[9999999999]", "out of range") // 32 bits
	wantFault(t, "models[0].codes.beam_widths", "[99999999999999999999]", "models[0].codes.beam_widths")
}

// Shares, sizes, names and addresses at and beyond their bounds.
func TestBounds(t *testing.T) {
	for _, c := range []struct{ path, good, bad string }{
		{"limits.body", "1KiB", "1023B"}, {"limits.body", "2MiB", "10%"},
		{"cache.disk", "8GiB", "10%"}, {"models[0].disk", "8GiB", "10%"},
		{"reload.warm", "100%", "101%"}, {"reload.warm", "0", "1KiB"},
		{"tracing.sample", "100%", "101%"}, {"tracing.sample", "0", "1KiB"},
		{"tracing.endpoint", "https://h/v1", "ftp://h/v1"}, {"tracing.endpoint", "http://h", "http://"},
		{"tracing.endpoint", "", "http://%zz"},
		{"data_dir", "x", ""}, {"dashboard.user_ids", "shown", "some"},
		{"device", "cpu", "gpu"}, {"schedule.policy", "bat", "cat"}, {"cache.policy", "sieve", "fifo"},
		{"cache.boundary", "fixed", "free"}, {"cache.device_boundary", "climb", "free"},
		{"cache.ahead", "off", "no"},
		{"listen", "[::1]:80", "localhost"}, {"listen", ":80", "localhost:"}, {"admin_listen", "", "x"},
		{"models[0].dtype", "f32", "f16"}, {"models[0].kv_dtype", "fp8", "fp4"}, {"models[0].weights", "int8",
			"int4"}, {"models[0].scoring.kind", "identifier", "listwise"},
		{"models[0].name", "a.b", "a/b"}, {"models[0].name", "...", ".."}, {"models[0].name", "m", "a:b"},
		{"models[0].prompt.history", "identifier", "titles"}, {"models[0].path", "y", ""},
		{"models[0].blend.items", "0", "-0.1"}, {"models[0].blend.items", "1", "1.1"},
		{"models[0].blend.history", "0", "-0.1"}, {"models[0].blend.history", "1", "1.1"},
		{"models[0].blend.first", "item", "both"}, {"models[0].blend.layers", "1", "0"},
		{"models[0].blend.window", "0", "-1"},
		{"models[0].blend.drift_limit", "1", "1.1"}, {"models[0].blend.drift_limit", "0.01", "0"},
		{"models[0].codes.pattern", `["%d"]`, `["%s"]`}, {"models[0].codes.pattern", `["<%d>"]`, `["%d%"]`},
		{"models[0].codes.pattern", `["<%d>"]`, `["x"]`},
		{"models[0].codes.beam_widths", "[1, 8]", "[0]"}, {"models[0].codes.beam_widths", "[8]", "[8, 8, 8]"},
		{"tables[0].name", strings.Repeat("n", 255), strings.Repeat("n", 256)}, {"tables[0].name", "a_b", "a b"},
		{"tables[0].name", "a-b", "a/b"}, {"tables[1].name", "other", "rows"},
		{"tables[0].store", "pebble", "sqlite"}, {"tables[0].policy", "lru", "fifo"},
		{"tables[0].cache", "1KiB", "1%"}, {"tables[0].dim", "6", "7"}, {"tables[2].cache", "0", "1%"},
		{"tables[0].default", "[1, 2, 3, 4]", "[1, 2, 3]"},
		{"tables[2].file", "g", ""},
	} {
		wantNone(t, c.path, c.good)
		named := c.path
		if named == "tables[0].dim" {
			named = "tables[0].cache" // an odd row cannot be cached
		}
		wantFault(t, c.path, c.bad, named)
	}
	wantFault(t, "tables[0].file", "f", "tables[0].file")
	wantFault(t, "tables[0].addresses", `["a:1"]`, "tables[0].addresses")
	wantFault(t, "tables[1].store", "pebble", "tables[1].addresses")
	wantFault(t, "models[0].prompt.user.x", "y", "unknown key")
}

// Settings that contradict each other are refused.
func TestContradictions(t *testing.T) {
	for text, named := range map[string]string{
		"tls: {cert: c}":         "tls",
		"tls: {key: k}":          "tls",
		"tls: {client_ca: c}":    "tls.client_ca",
		"listen: 127.0.0.1:8081": "admin_listen",
		"models: []":             "models",
		"models: [{path: x, name: a}, {path: y, name: a}]":                                  "models[1].name",
		"models: [{path: x, item_table: t}]":                                                "models[0].item_table",
		"models: [{path: x, device_rows: 1GiB}]":                                            "models[0].device_rows",
		"models: [{path: x, item_table: t, device_rows: 95%}]\ntables: [{name: t, dim: 2}]": "models[0].device_rows",
		"models: [{path: x, scoring: {kind: pointwise}}]":                                   "models[0].scoring",
		"models: [{path: x, scoring: {kind: pointwise, \"yes\": a}}]":                       "models[0].scoring",
		"models: [{path: x, scoring: {kind: pointwise, \"yes\": a, \"no\": a}}]":            "models[0].scoring",
		"models: [{path: x, scoring: {\"yes\": a}}]":                                        "models[0].scoring",
		"models: [{path: x, scoring: {\"no\": a}}]":                                         "models[0].scoring",
		"models: [{path: x, blend: {auto: true}, kv_dtype: fp8}]":                           "models[0].blend.auto",
		"models: [{path: x, codes: {first_token: [1, 2], size: [3]}}]":                      "models[0].codes",
		"models: [{path: x, codes: {first_token: [1], size: [3], pattern: [\"<%d>\"]}}]":    "models[0].codes",
		"models: [{path: x, codes: {first_token: [-1], size: [3]}}]":                        "models[0].codes",
		"models: [{path: x, codes: {first_token: [0], size: [0]}}]":                         "models[0].codes",
		"models: [{path: x, prompt: {history: codes}}]":                                     "models[0].prompt.history",
	} {
		if !strings.Contains(text, "models") {
			text += "\nmodels: [{path: x}]"
		}
		_, err := Load(Source{File: write(t, text)})
		var f *FieldError
		if err == nil || !strings.Contains(err.Error(), named) && !(errors.As(err, &f) && f.Path == named) {
			t.Errorf("%s: error %v, want one that names %s", text, err, named)
		}
	}
	for _, text := range []string{
		"tls: {cert: c, key: k, client_ca: a}", "listen: 127.0.0.1:0\nadmin_listen: 127.0.0.1:0",
		"models: [{path: x, codes: {first_token: [0], size: [1]}, prompt: {history: codes}}]",
		"models: [{path: x, scoring: {kind: pointwise, \"yes\": a, \"no\": b}}]",
		"models: [{path: x, blend: {auto: true}, kv_dtype: bf16}]",
		"models: [{path: x, item_table: t}]\ntables: [{name: t, dim: 2}]",
	} {
		if !strings.Contains(text, "models") {
			text += "\nmodels: [{path: x}]"
		}
		if _, err := Load(Source{File: write(t, text)}); err != nil {
			t.Errorf("%s: %v", text, err)
		}
	}
}

func TestSizes(t *testing.T) {
	if !(Size{}).IsZero() || (Size{Bytes: 1}).IsZero() || (Size{Percent: 1}).IsZero() {
		t.Error("IsZero")
	}
	if got := (Size{Percent: 25}).Of(1000); got != 250 {
		t.Errorf("25 %% of 1000 is %d", got)
	}
	if got := (Size{Bytes: 7}).Of(1000); got != 7 {
		t.Errorf("7 bytes of 1000 are %d", got)
	}
}

// weights_keep has patterns, or auto alone, for weights that are quantised at load.
func TestWeightsKeep(t *testing.T) {
	for _, c := range []struct {
		weights string
		keep    []string
		want    string
	}{
		{"int8", nil, ""}, {"auto", nil, ""}, {"int8", []string{"auto"}, ""}, {"fp8", []string{`layers\.0\.`, "o_proj"}, ""},
		{"auto", []string{"auto"}, "weights_keep: is for weights: int8 or fp8"},
		{"int8", []string{"o_proj", "auto"}, "auto stands alone"},
		{"int8", []string{"o_proj", "("}, "weights_keep[1]"}, {"int8", []string{""}, "weights_keep[0]"},
	} {
		var m Model
		m.setDefaults()
		m.Path, m.Weights, m.WeightsKeep = "m", c.weights, c.keep
		err := m.Validate()
		if c.want == "" && err != nil || c.want != "" && (err == nil || !strings.Contains(err.Error(), c.want)) {
			t.Errorf("weights %s, keep %q: %v, want %q", c.weights, c.keep, err, c.want)
		}
	}
}

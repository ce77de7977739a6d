package doctor

import (
	"encoding/json"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"grebe/app"
	"grebe/internal/config"
	_ "grebe/model/qwen"
	"grebe/shop/demo"
)

// put writes files below a new root.
func put(t *testing.T, files map[string]string) string {
	t.Helper()
	root := t.TempDir()
	for name, text := range files {
		full := filepath.Join(root, name)
		if err := os.MkdirAll(filepath.Dir(full), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(full, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

func find(t *testing.T, r *Report, check string) Finding {
	t.Helper()
	for _, f := range r.Findings {
		if f.Check == check {
			return f
		}
	}
	t.Fatalf("nothing about %q in %+v", check, r.Findings)
	return Finding{}
}

func TestMachineFiles(t *testing.T) {
	m := machine{root: put(t, map[string]string{
		"proc/meminfo":             "MemTotal:       1000 kB\nMemAvailable:   600 kB\n",
		"proc/cpuinfo":             "processor : 0\nmodel name\t: Test CPU\nflags\t\t: fpu avx2 fma\n",
		"sys/fs/cgroup/memory.max": "307200",
		"sys/kernel/mm/transparent_hugepage/enabled": "always madvise [never]",
		"proc/driver/nvidia/version":                 "NVRM version: NVIDIA 580.1\nGCC",
		"dev/nvidia0":                                "",
		"etc/ld.so.conf.d/cuda.conf":                 "# cuda\n/opt/cuda/lib\n",
		"opt/cuda/lib/libnvrtc.so.13":                "",
		"usr/lib/x86_64-linux-gnu/libcuda.so.1":      "",
	})}
	r := &Report{}
	m.processor(r)
	if free := m.memory(r); free != 307200 {
		t.Errorf("free memory is %d, want the container's 307200", free)
	}
	m.hugePages(r)
	m.gpu(r)
	if f := find(t, r, "processor"); !strings.Contains(f.Detail, "Test CPU (avx2 fma)") {
		t.Errorf("processor: %+v", f)
	}
	if f := find(t, r, "huge pages"); f.Status != Warn || f.Remedy == "" {
		t.Errorf("huge pages: %+v, want a warning with a remedy", f)
	}
	if f := find(t, r, "gpu"); !strings.Contains(f.Detail, "1 found (NVIDIA 580.1)") {
		t.Errorf("gpu: %+v", f)
	}
	for lib, found := range map[string]bool{"libcuda": true, "libnvrtc": true, "libcublasLt": false} {
		if f := find(t, r, lib); (f.Remedy == "") != found {
			t.Errorf("%s: %+v, want found %v", lib, f, found)
		}
	}
}

func TestBareMachineIsNotBroken(t *testing.T) {
	r := &Report{}
	m := machine{root: t.TempDir()}
	m.processor(r)
	m.cores(r)
	m.memory(r)
	m.hugePages(r)
	m.gpu(r)
	if r.Failed() {
		t.Errorf("a machine that tells nothing is called broken: %+v", r.Findings)
	}
}

func TestConfigProblemsFailWithARemedy(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	dir := put(t, map[string]string{
		"bad.yaml": "lisen: x\nmodels: [{path: y}]\n",
		"grebe.yaml": "listen: " + taken.Addr().String() + "\nadmin_listen: \"\"\ngrpc_listen: \"\"\n" +
			"models: [{name: m, path: absent}]\ncatalog: {items: absent.ndjson}\n" +
			"data_dir: bad.yaml/data\nauth: {keys: absent.yaml}\ntls: {cert: absent.pem, key: absent.key}\n" +
			"tables: [{name: f, dim: 4, store: file, file: absent.f32}, {name: t, dim: 4, store: redis, addresses: " +
			"[\"127.0.0.1:1\"]}, {name: there, dim: 4, store: redis, addresses: [\"" + taken.Addr().String() + "\"]}]\n",
	})
	for file, checks := range map[string][]string{
		"bad.yaml":   {"configuration"},
		"grebe.yaml": {"model m", "catalog", "listen", "table t", "table f", "data_dir", "auth.keys", "tls.cert", "tls.key"},
	} {
		r := &Report{}
		examineConfig(r, filepath.Join(dir, file), nil, 1<<40)
		for _, c := range checks {
			if f := find(t, r, c); f.Status != Fail || f.Remedy == "" {
				t.Errorf("%s: %+v, want a failure with a remedy", file, f)
			}
		}
		if file == "grebe.yaml" && find(t, r, "table there").Status != OK {
			t.Errorf("%s: %+v of a store that answers", file, find(t, r, "table there"))
		}
		if !r.Failed() {
			t.Errorf("%s: the report does not fail", file)
		}
	}
}

// The remedy of a broken configuration names no source file, and speaks of keys only where a key is unknown.
func TestRemediesOfAConfiguration(t *testing.T) {
	dir := put(t, map[string]string{"unknown.yaml": "lisen: x\n", "value.yaml": "slo_ms: -1\n",
		"malformed.yaml": "models: [{path: y}\nlisten: x\n"})
	for file, want := range map[string]string{"unknown.yaml": "--print-config", "value.yaml": "correct it there",
		"malformed.yaml": "correct it there", "absent.yaml": "-c FILE"} {
		r := &Report{}
		examineConfig(r, filepath.Join(dir, file), nil, 1<<40)
		f := find(t, r, "configuration")
		if f.Status != Fail || !strings.Contains(f.Remedy, want) || !strings.Contains(f.Detail, file) ||
			strings.Contains(f.Remedy, ".go") || (want != "--print-config" && strings.Contains(f.Remedy, "keys")) {
			t.Errorf("%s: %+v, want a failure with the remedy %q", file, f, want)
		}
	}
}

// Answers that are not tokens are reported before a start, which would fail.
func TestAnswersThatAreNoTokens(t *testing.T) {
	folder := t.TempDir()
	if err := demo.Ensure(folder); err != nil {
		t.Fatal(err)
	}
	lm := filepath.Join(folder, "lm")
	for scoring, want := range map[string]Status{
		`{kind: pointwise, "yes": "a", "no": "b"}`:             OK,
		`{kind: pointwise, "yes": "certainly not", "no": "b"}`: Fail,
		`{kind: pointwise, "yes": 5, "no": 6}`:                 OK,
		`{kind: pointwise, "yes": 5, "no": 999999}`:            Fail,
	} {
		dir := put(t, map[string]string{"grebe.yaml": "data_dir: data\nmodels: [{name: m, path: " + lm + ", scoring: " +
			scoring + "}]\n"})
		r := &Report{}
		examineConfig(r, filepath.Join(dir, "grebe.yaml"), nil, 1<<40)
		failed := slices.ContainsFunc(r.Findings, func(f Finding) bool { return f.Check == "model m" && f.Status == Fail })
		if failed != (want == Fail) {
			t.Errorf("%s: %+v", scoring, r.Findings)
		}
		if left, _ := filepath.Glob(filepath.Join(dir, ".grebe-doctor-*")); len(left) > 0 {
			t.Errorf("left behind: %q", left)
		}
	}
}

// A model that refuses every ranking is warned about: scoring by identifier needs an instruction. So is one that scores
// item by item and asks nothing, neither behind the item nor in an instruction.
func TestAModelWithoutAnInstruction(t *testing.T) {
	folder, err := filepath.Abs("../../testdata/fixtures/qwen2-tiny")
	if err != nil {
		t.Fatal(err)
	}
	for keys, want := range map[string]bool{
		``: true,
		`, prompt: {instruction: {tokens: [1, 2]}}`:                                             false,
		`, scoring: {kind: pointwise, "yes": 5, "no": 6}`:                                       true,
		`, scoring: {kind: pointwise, "yes": 5, "no": 6}, prompt: {item: "Buy {text}?"}`:        false,
		`, scoring: {kind: pointwise, "yes": 5, "no": 6}, prompt: {instruction: {tokens: [1]}}`: false,
		`, codes: {first_token: [1, 9], size: [8, 8]}`:                                          false, // to recommend
		`}, {name: n, path: ` + folder + `, dtype: f32`:                                         true,
		`, prompt: {generate_instruction: {tokens: [300]}}`:                                     true,
	} {
		dir := put(t, map[string]string{"grebe.yaml": "data_dir: data\nmodels: [{name: m, path: " + folder + keys + "}]\n"})
		r := &Report{}
		examineConfig(r, filepath.Join(dir, "grebe.yaml"), nil, 1<<40)
		if got := slices.ContainsFunc(r.Findings, func(f Finding) bool {
			return f.Check == "model m" && f.Status == Warn &&
				strings.Contains(f.Detail, "models[0].prompt.instruction is missing")
		}); got != want {
			t.Errorf("%s: %+v, want a warning: %v", keys, r.Findings, want)
		}
	}
}

// What Git clones without Git LFS is named, and files of the catalog are read as a start reads them.
func TestFilesThatAStartRefuses(t *testing.T) {
	folder := t.TempDir()
	if err := os.CopyFS(folder, os.DirFS("../../testdata/fixtures/qwen2-tiny")); err != nil {
		t.Fatal(err)
	}
	const pointer = "version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 988097824\n"
	dir := put(t, map[string]string{
		"grebe.yaml": "data_dir: data\nmodels: [{name: m, path: " + folder + "}]\n" +
			"catalog: {items: items.ndjson, users: users.ndjson}\n",
		"items.ndjson": `{"id":"a"}` + "\n\n" + `{"id":"b"}` + "\n", "users.ndjson": `{"id":"u","history":["a"]}` + "\n",
	})
	check := func(name string) Finding {
		t.Helper()
		r := &Report{}
		examineConfig(r, filepath.Join(dir, "grebe.yaml"), nil, 1<<40)
		for _, f := range r.Findings {
			if f.Check == name && f.Status == Fail {
				return f
			}
		}
		return find(t, r, name)
	}
	write := func(file, text string) {
		t.Helper()
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if f := check("catalog.items"); f.Status != OK || !strings.Contains(f.Detail, "2 lines") {
		t.Errorf("two items: %+v", f)
	}
	for _, c := range []struct{ check, file, text, detail, remedy string }{
		{"catalog.items", filepath.Join(dir, "items.ndjson"), `{"id":"a"}` + "\n" + `{"id":"b"`, "items.ndjson:2: ", "line"},
		{"catalog.users", filepath.Join(dir, "users.ndjson"), `{"id":7}`, "users.ndjson:1: ", "line"},
		{"model m", filepath.Join(folder, "tokenizer.json"), pointer, "pointer of Git LFS", "git lfs pull"},
		{"model m", filepath.Join(folder, "model.safetensors"), pointer, "pointer of Git LFS", "git lfs pull"},
	} {
		write(c.file, c.text)
		if f := check(c.check); f.Status != Fail || !strings.Contains(f.Detail, c.detail) ||
			!strings.Contains(f.Remedy, c.remedy) {
			t.Errorf("%s: %+v, want a failure with %q and %q", c.file, f, c.detail, c.remedy)
		}
	}
	write(filepath.Join(dir, "grebe.yaml"), "models:\n  - name: m\n   path: x\n")
	if f := check("configuration"); f.Status != Fail || !strings.Contains(f.Remedy, "indented") {
		t.Errorf("wrong indentation: %+v", f)
	}
}

// A model without a tokenizer cannot have texts in its configuration: the start would fail.
func TestTextsWithoutATokenizer(t *testing.T) {
	folder, err := filepath.Abs("../../testdata/fixtures/qwen2-tiny")
	if err != nil {
		t.Fatal(err)
	}
	for keys, want := range map[string]Status{
		``:                                  Warn,
		`, prompt: {instruction: "Which?"}`: Fail,
		`, prompt: {instruction: {tokens: [1, 2]}}`:           Warn,
		`, scoring: {kind: pointwise, "yes": "a", "no": "b"}`: Fail,
		`, scoring: {kind: pointwise, "yes": 5, "no": 6}`:     Warn,
	} {
		dir := put(t, map[string]string{"grebe.yaml": "data_dir: data\nmodels: [{name: m, path: " + folder + keys + "}]\n"})
		r := &Report{}
		examineConfig(r, filepath.Join(dir, "grebe.yaml"), nil, 1<<40)
		if !slices.ContainsFunc(r.Findings, func(f Finding) bool {
			return f.Check == "model m" && f.Status == want && strings.Contains(f.Remedy+f.Detail, ": [3]}")
		}) {
			t.Errorf("%s: %+v, want %v", keys, r.Findings, want)
		}
	}
}

// Two configurations on one folder need memory for one model. Caches that do not fit beside the models are a warning.
func TestMemoryOfModelsAndCaches(t *testing.T) {
	folder := t.TempDir()
	if err := demo.Ensure(folder); err != nil {
		t.Fatal(err)
	}
	lm := filepath.Join(folder, "lm")
	dir := put(t, map[string]string{"grebe.yaml": "data_dir: data\ncache: {host_memory: 64MiB}\nmodels: [{name: a, " +
		"path: " + lm +
		"}, {name: b, path: " + lm + ", prompt: {instruction: x}}, {name: c, path: " + lm + ", host_memory: 32MiB}]\n"})
	const weights = 2 * 12_600_000 * memoryPerCheckpoint // a and b share them
	for free, want := range map[int64]Status{weights - 1e6: Fail, weights + 1e6: Warn, weights + 96<<20 + 1e6: OK} {
		r := &Report{}
		examineConfig(r, filepath.Join(dir, "grebe.yaml"), nil, free)
		got := OK
		for _, f := range r.Findings {
			if f.Check == "memory" {
				got = f.Status
			}
		}
		if got != want {
			t.Errorf("with %d bytes free: %v, want %v", free, got, want)
		}
	}
}

// A chat template that the server would refuse at its start is a failure, unless the configuration replaces it.
func TestChatTemplates(t *testing.T) {
	folder := t.TempDir()
	if err := demo.Ensure(folder); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(folder, demo.ConfigFile)
	cfg, err := config.Load(config.Source{File: file})
	if err != nil {
		t.Fatal(err)
	}
	at := cfg.Models[0].Path
	plain, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	replaced := strings.Replace(string(plain), "prompt:", "prompt:\n      chat_message: \"{text}\"", 1)
	for source, fails := range map[string]bool{
		"{% for m in messages %}{{ m.content }}{% endfor %}": false, "{% include 'a' %}": true, "{{ 1 }}": true,
	} {
		raw, err := json.Marshal(map[string]string{"chat_template": source})
		if err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(at, "tokenizer_config.json"), raw, 0o600); err != nil {
			t.Fatal(err)
		}
		for text, want := range map[string]bool{string(plain): fails, replaced: false} {
			if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			r := &Report{}
			examineConfig(r, file, nil, 1<<40)
			got := slices.ContainsFunc(r.Findings, func(f Finding) bool {
				return f.Status == Fail && strings.Contains(f.Detail, "chat template")
			})
			if got != want {
				t.Errorf("%s: fails %v, want %v: %+v", source, got, want, r.Findings)
			}
			cfg, err = config.Load(config.Source{File: file})
			if err != nil {
				t.Fatal(err)
			}
			if _, err := app.BuilderOf(&cfg.Models[0]); (err != nil) != want {
				t.Errorf("%s: the start says %v", source, err)
			}
		}
	}
}

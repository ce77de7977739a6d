package archtest

import (
	"fmt"
	"slices"
	"strings"
	"testing"
)

// rooms lists the top-level packages in the order in which a request walks through them. A package
// imports only its own room and rooms below it: then every room can be read, tested and simulated
// without those above it.
var rooms = []string{
	"cmd", "app", "ingest", "index", "server", "cluster", "serve", "ahead", "generate", "catalog",
	"reuse", "dispatch", "prompt", "route", "schedule", "placement",
	"engine", "blend", "beam", "codes", "model", "kv", "residency", "embed", "plan", "alloc", "pool", "compute",
	"evict",    // decisions alone: a device that caches rows has them made here, too
	"internal", // small helpers without a place in the walk
	"api",      // messages only: everybody may speak them, they know nobody
}

// beside stand beside the walk and may import any room. Only the binary and each other import them.
var beside = []string{"sim", "workload", "shop", "eval", "bench", "client", "deploy"}

// rule forbids imports with a reason.
type rule struct {
	what   string                           // what is forbidden, for the message
	hit    func(importer, path string) bool // path as written in the import
	reason string
}

func under(dirs ...string) func(string) bool {
	return func(p string) bool {
		return slices.ContainsFunc(dirs, func(d string) bool { return within(p, d) })
	}
}

// only forbids what but to the importers.
func only(what func(string) bool, importers ...string) func(string, string) bool {
	allowed := under(importers...)
	return func(importer, path string) bool { return what(path) && !allowed(importer) }
}

var rules = []rule{
	{"a device", only(under(module+"/compute/cpu", module+"/compute/cuda"), "cmd", "app", "bench", "eval", "compute/cpu",
		"compute/cuda"),
		"models and the engine run on any device: only the app and the benchmarks pick one"},
	{"the binary", only(under(module+"/cmd"), "cmd"),
		"a command is flags and client calls: what others need belongs in a room"},
	{
		"a simulator, workload or benchmark", only(under(module+"/sim", module+"/workload", module+"/shop", module+
			"/eval", module+"/bench"),
			"cmd", "sim", "workload", "shop", "eval", "bench"),
		"they drive the rooms and the rooms must not depend on being driven"},
	{"cgo", func(_, path string) bool { return path == "C" },
		"one static binary on every machine: C libraries are opened at run time"},
	{"C libraries", only(under("github.com/ebitengine/purego"), "compute/cuda", "bench", "cmd"),
		"the server must run where no library is installed; devices and benchmarks say so when one is missing"},
	{"gRPC", only(under("google.golang.org/grpc"), "api", "server", "cluster", "cmd"),
		"wire formats stay at the doors: rooms inside take plain structs"},
	{"HTTP", only(under("net/http"), "client", "app", "ingest", "internal/cli", "server", "cluster", "cmd", "bench", "sim",
		"workload"),
		"wire formats stay at the doors: rooms inside take plain structs"},
	{"KV and what computes it", func(importer, path string) bool {
		return within(importer, "server") && under(module+"/kv", module+"/reuse", module+"/engine", module+"/plan", module+
			"/schedule",
			module+"/residency", module+"/model/hstu")(path)
	}, "the front door speaks protocols: serve answers, and the door works the same whatever a model keeps"},
	{"YAML", only(under("go.yaml.in/yaml"), "internal/config"),
		"one package reads configuration; rooms take structs with a Validate"},
	{"command-line flags", only(under("github.com/alecthomas/kong", "flag"), "cmd", "internal/cli", "internal/lines",
		"internal/mutate", "internal/scripttest", "internal/typecheck"),
		"globals for flags make two servers in one process impossible"},
	{"helpers of tests", func(importer, path string) bool {
		return within(path, module) && strings.HasSuffix(path, "test") &&
			!under("cmd", "bench", "eval", "shop", "sim")(importer) &&
			!strings.HasSuffix(importer, "test")
	}, "what serves requests must not contain what checks it"},
}

func TestImportsGoDown(t *testing.T) {
	for _, p := range packages(t) {
		for _, f := range p.files {
			for _, i := range f.imports {
				if reason := upward(p.path, i); reason != "" && !f.test {
					t.Errorf("%s imports %s: %s", f.path, i, reason)
				}
			}
		}
	}
}

// upward says why package p may not import path, or nothing.
func upward(p, path string) string {
	target, ours := strings.CutPrefix(path, module+"/")
	if !ours {
		return ""
	}
	from, to := room(p), room(target)
	if from == to || slices.Contains(beside, from) || from == "cmd" || slices.Contains(beside, to) {
		return "" // who imports those beside the walk is a rule of its own
	}
	i, j := slices.Index(rooms, from), slices.Index(rooms, to)
	if i < 0 || j < 0 {
		return fmt.Sprintf("no room %q: add it to the list here and to ARCHITECTURE.md", from+" or "+to)
	}
	if i > j {
		return fmt.Sprintf("%s lies above %s: a package imports only rooms below its own", to, from)
	}
	return ""
}

func room(p string) string {
	first, _, _ := strings.Cut(p, "/")
	return first
}

func TestEveryFolderIsARoom(t *testing.T) {
	for _, p := range packages(t) {
		if r := room(p.path); !slices.Contains(rooms, r) && !slices.Contains(beside, r) {
			t.Errorf("%s: no room %q: add it to the list here and to ARCHITECTURE.md", p.path, r)
		}
	}
}

func TestForbiddenImports(t *testing.T) {
	for _, p := range packages(t) {
		for _, f := range p.files {
			for _, i := range f.imports {
				if f.test {
					continue
				}
				for _, r := range broken(p.path, i) {
					t.Errorf("%s imports %s (%s): %s", f.path, i, r.what, r.reason)
				}
			}
		}
	}
}

func broken(importer, path string) []rule {
	return slices.DeleteFunc(slices.Clone(rules), func(r rule) bool { return !r.hit(importer, path) })
}

// A rule that never fires guards nothing: each is tried on imports that it must refuse and allow.
func TestRulesFire(t *testing.T) {
	for _, c := range []struct {
		importer, path string
		ok             bool
	}{
		{"engine", "grebe/compute", true},
		{"compute", "grebe/engine", false},
		{"prompt", "grebe/server", false},
		{"server", "grebe/prompt", true},
		{"server", "grebe/serve", true},
		{"serve", "grebe/server", false},
		{"server", "grebe/kv/disk", false},
		{"server/guard", "grebe/plan", false},
		{"serve", "grebe/kv/disk", true},
		{"serve", "net/http", false},
		{"serve/tracing", "google.golang.org/grpc/metadata", false},
		{"internal/config", "grebe/plan", false},
		{"engine", "grebe/compute/cpu", false},
		{"compute/cpu", "grebe/compute/cpu/gemm", true},
		{"cmd/grebe", "grebe/compute/cpu", true},
		{"engine", "grebe/bench/gemm", false},
		{"bench/prefill", "grebe/bench/gemm", true},
		{"plan", "C", false},
		{"kv", "google.golang.org/grpc/codes", false},
		{"server", "google.golang.org/grpc/codes", true},
		{"catalog", "net/http", false},
		{"model", "go.yaml.in/yaml/v3", false},
		{"model", "grebe/model/modeltest", false},
		{"model/modeltest", "grebe/model", true},
		{"unheard", "grebe/plan", false},
	} {
		ok := upward(c.importer, c.path) == "" && len(broken(c.importer, c.path)) == 0
		if ok != c.ok {
			t.Errorf("%s imports %s: allowed is %v, want %v", c.importer, c.path, ok, c.ok)
		}
	}
}

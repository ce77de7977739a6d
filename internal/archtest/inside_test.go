package archtest

import (
	"slices"
	"strings"
	"testing"
)

// insides lists the packages of rooms that have several, from the top down. A package imports only those below it. One
// that is not listed stands where the package above it in the tree stands.
var insides = map[string][]string{
	"app":     {"app", "app/apptest", "app/doctor", "app/backup", "app/codebook", "app/divide", "app/budget"},
	"catalog": {"catalog/history", "catalog", "catalog/filter"},
	"cluster": {"cluster", "cluster/status", "cluster/replica", "cluster/fetch", "cluster/hold", "cluster/feed/wire",
		"cluster/call",
		"cluster/feed", "cluster/leader", "cluster/rollout", "cluster/member", "cluster/peer", "cluster/mtls/mtlstest",
		"cluster/mtls",
		"cluster/coord/coordtest", "cluster/coord/embedded", "cluster/coord/etcd", "cluster/coord/kube/kubetest",
		"cluster/coord/kube",
		"cluster/coord/internal/client", "cluster/coord", "cluster/protocol"},
	"dispatch": {"dispatch", "dispatch/loading"},
	"embed":    {"embed/embedtest", "embed/redisserver", "embed"},
	"engine":   {"engine/llama2ctest", "engine"},
	"eval":     {"eval/measure", "eval"},
	"evict":    {"evict/evicttest", "evict"},
	"kv":       {"kv/proto/rows", "kv", "kv/proto", "kv/disk", "kv/radix"},
	"model": {"model/modeltest", "model/hstu/hstutest", "model/quantise", "model/llama", "model/qwen",
		"model/decoder", "model/hstu", "model",
		"model/tokenizer", "model/safetensors"},
	"prompt": {"prompt", "prompt/jinja"},
	"serve":  {"serve/servetest", "serve", "serve/tracing"},
	"server": {"server", "server/batch", "server/dashboard", "server/guard", "server/openapi"},
	"shop":   {"shop/demo", "shop"},
	"compute": {
		"compute/computetest",
		"compute/cuda/rows/rowstest", "compute/cuda/drivertest", "compute/cuda", "compute/cuda/rows", "compute/cuda/attend",
		"compute/cuda/product", "compute/cuda/topk", "compute/cuda/split",
		"compute/cuda/kernels", "compute/cuda/driver",
		"compute/cpu", "compute/cpu/attend", "compute/cpu/gemm", "compute/cpu/vec", "compute/cpu/internal",
		"compute/null", "compute/ref", "compute", "compute/internal",
	},
}

// place is where a package stands in the list of its room; −1: the room has no list.
func place(p string) int {
	list := insides[room(p)]
	for q := p; ; {
		if i := slices.Index(list, q); i >= 0 {
			return i
		}
		i := strings.LastIndexByte(q, '/')
		if i < 0 {
			return -1
		}
		q = q[:i]
	}
}

// upwardInside reports whether package p imports one that stands above it in their room.
func upwardInside(p, path string) bool {
	target, ours := strings.CutPrefix(path, module+"/")
	return ours && target != p && room(p) == room(target) && place(p) > place(target)
}

func TestImportsGoDownInsideRooms(t *testing.T) {
	count := map[string]int{}
	for _, p := range packages(t) {
		count[room(p.path)]++
		for _, f := range p.files {
			for _, i := range f.imports {
				if !f.test && upwardInside(p.path, i) {
					t.Errorf("%s imports %s, which lies above it in the room %s: see insides", f.path, i, room(p.path))
				}
			}
		}
	}
	for _, r := range rooms {
		// whose packages stand side by side
		if count[r] > 1 && insides[r] == nil && !slices.Contains([]string{"cmd", "internal", "api"}, r) {
			t.Errorf("the room %s has %d packages: list them in insides, from the top down", r, count[r])
		}
	}
}

func TestUpwardImportsInsideAreSeen(t *testing.T) {
	for _, c := range []struct {
		importer, path string
		upward         bool
	}{
		{"server", "grebe/server/guard", false},
		{"server/guard", "grebe/server", true},
		{"compute/cuda", "grebe/compute/cuda/driver", false},
		{"compute/cuda/driver", "grebe/compute/cuda", true},
		{"compute", "grebe/compute/cpu", true},
		{"compute/cpu/attend/gen", "grebe/compute/cpu/internal/asmgen", false},
		{"kv/radix", "grebe/kv", true},
		{"kv", "grebe/pool", false}, // another room
	} {
		if got := upwardInside(c.importer, c.path); got != c.upward {
			t.Errorf("%s imports %s: upward is %v, want %v", c.importer, c.path, got, c.upward)
		}
	}
}

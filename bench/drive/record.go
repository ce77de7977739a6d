package drive

import (
	"bytes"
	"compress/gzip"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"time"

	"grebe/bench/load"
	"grebe/workload"
)

// Kind is a way to run a server whose decisions are recorded.
type Kind struct {
	Name     string
	About    string
	Settings []Setting
	Mix      Mix
	Over     bool     // more requests than can be answered
	Restart  bool     // stop in the middle and start again on the same data folder
	Reloads  int      // other checkpoints that take over meanwhile
	Index    []string // what grebe index is told to prepare, if anything
	Env      []string // more of the server's environment
}

// memory gives the models of the demo too little memory. Nothing is computed, unless more says so: a setting that comes
// later wins.
func memory(host, disk string, more ...Setting) []Setting {
	out := []Setting{
		{"device", "none"}, {"slo_ms", "5000"},
		{"models[0].host_memory", host}, {"models[1].host_memory", "1MiB"}, {"models[2].host_memory", "4MiB"},
	}
	if disk != "" {
		out = append(out, Setting{"models[0].disk", disk}, Setting{"models[1].disk", disk})
	}
	return append(out, more...)
}

// Kinds are all ways, in the order in which they are recorded.
var Kinds = []Kind{
	{
		Name: "cpu", About: "a small model on the CPU, memory for a third of the users", Mix: usual,
		Settings: memory("12MiB", "", Setting{"device", "cpu"}),
	}, {
		Name: "tiers", About: "a GPU's memory and the host's, both too small, and a disk", Mix: usual,
		Settings: memory("8MiB", "32MiB", Setting{"device", "cuda"}, Setting{"models[0].device_memory", "4MiB"},
			Setting{"models[1].device_memory", "2MiB"}, Setting{"models[2].device_memory", "16MiB"}),
	}, {
		Name: "disk", About: "memory for a few users, a disk for most, a restart", Mix: usual, Restart: true,
		Settings: memory("3MiB", "24MiB"),
	}, {
		Name: "blending", About: "prompts that are blended, or may be, with prototypes and blocks on disk",
		Mix: usual.with(Mix{Blend: 40}), Index: []string{"--prototypes", "--model", "shop"},
		Settings: memory("4MiB", "64MiB", Setting{"models[0].blend.auto", "true"}),
	}, {
		Name: "reloads", About: "ten checkpoints that take over from one another", Mix: usual, Reloads: 10,
		Settings: memory("8MiB", "32MiB", Setting{"reload.trial_ms", "0"}),
	}, {
		Name: "deletions", About: "users and items that are deleted and come back",
		Mix:      usual.with(Mix{Forget: 20, Withdraw: 20}),
		Settings: memory("6MiB", "32MiB"),
	}, {
		Name: "overload", About: "three times the requests that the CPU can answer, with deadlines",
		Mix: usual, Over: true,
		Settings: memory("6MiB", "16MiB", Setting{"device", "cpu"}),
	},
}

// Node is a server that one node of a simulator can follow: one worker, no disk, rankings for users with an id, and
// one thread for all goroutines, so that the steps of a request do not lie between those of another.
var Node = Kind{
	Name: "node", About: "one worker, rankings for users with an id, three times as many as it can answer",
	Mix: Mix{Rank: 80, ItemFirst: 10, Grow: 10}, Over: true, Env: []string{"GOMAXPROCS=1", "GODEBUG=asyncpreemptoff=1"},
	Settings: memory("6MiB", "", Setting{"device", "cpu"}, Setting{"cache.ahead", "off"}, Setting{"workers", "1"}),
}

// Recording says what is recorded.
type Recording struct {
	Program  string // that decides: the path of grebe
	Demo     string // folder of the demo's files
	Dir      string // for the logs, KIND.log.gz
	Requests int    // of each kind
	Seed     uint64
}

// Record runs a server in one way and writes the log of its decisions. It returns how many answers had each status.
func Record(ctx context.Context, o Recording, k *Kind) (map[int]int, error) {
	work, err := os.MkdirTemp("", "grebe-record-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(work)
	t := NewTraffic(o.Seed, k.Mix)
	run := &recording{
		Recording: o, kind: k, traffic: t,
		work: work, file: filepath.Join(o.Demo, "grebe.yaml"), log: filepath.Join(work, "log"),
	}
	if err := run.prepare(ctx); err != nil {
		return nil, fmt.Errorf("record %s: %w", k.Name, err)
	}
	parts := []int{0, o.Requests}
	if k.Restart {
		parts = []int{0, o.Requests / 2, o.Requests}
	}
	for i := range parts[1:] {
		if err := run.serve(ctx, parts[i], parts[i+1]); err != nil {
			return nil, fmt.Errorf("record %s: %w", k.Name, err)
		}
	}
	if err := run.pack(); err != nil {
		return nil, fmt.Errorf("record %s: %w", k.Name, err)
	}
	return t.Answers(), nil
}

// recording is one that is under way.
type recording struct {
	Recording
	kind     *Kind
	traffic  *Traffic
	work     string // folder
	file     string // configuration
	log      string
	settings []Setting

	reloading sync.Mutex
	serving   int // which checkpoint does; guarded by reloading
}

func (r *recording) prepare(ctx context.Context) error {
	people := filepath.Join(r.work, "users.ndjson")
	if err := r.traffic.WriteUsers(filepath.Join(r.Demo, "users.ndjson"), people); err != nil {
		return err
	}
	r.settings = append(slices.Clone(r.kind.Settings),
		Setting{"catalog.users", people}, Setting{"data_dir", filepath.Join(r.work, "data")})
	if r.kind.Reloads > 0 {
		if err := r.checkpoints(); err != nil {
			return err
		}
	}
	if len(r.kind.Index) > 0 {
		// Nonsense has no prototypes, and a whole history has to fit.
		computed := append(slices.Clone(r.settings),
			Setting{"device", "cpu"}, Setting{"models[0].host_memory", "64MiB"})
		if err := Index(ctx, r.Program, r.file, computed, r.kind.Index...); err != nil {
			return err
		}
	}
	r.settings = append(r.settings, Setting{"record", r.log})
	return nil
}

// checkpoints makes two that differ, and a link to one that is served.
func (r *recording) checkpoints() error {
	for i, theta := range []string{"10000.0", "9999.0"} {
		dir := filepath.Join(r.work, fmt.Sprintf("lm-%d", i))
		if err := os.CopyFS(dir, os.DirFS(filepath.Join(r.Demo, "lm"))); err != nil {
			return err
		}
		file := filepath.Join(dir, "config.json")
		b, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		was := []byte(`"rope_theta": 10000.0`)
		if !bytes.Contains(b, was) {
			return errors.New("the demo's checkpoint has no rope_theta of 10000.0")
		}
		if err := os.WriteFile(file, bytes.Replace(b, was, []byte(`"rope_theta": `+theta), 1), 0o600); err != nil {
			return err
		}
	}
	r.settings = append(r.settings, Setting{"models[0].path", filepath.Join(r.work, "current")})
	return r.point(0)
}

// point has the served link name a checkpoint.
func (r *recording) point(i int) error {
	next := filepath.Join(r.work, "next")
	if err := os.Symlink(fmt.Sprintf("lm-%d", i), next); err != nil {
		return err
	}
	return os.Rename(next, filepath.Join(r.work, "current"))
}

// serve starts a server, sends some of the requests, and stops it.
func (r *recording) serve(ctx context.Context, from, to int) error {
	s, err := Start(ctx, r.Program, r.file, r.settings, r.kind.Env...)
	if err != nil {
		return err
	}
	r.traffic.URL = s.URL
	return errors.Join(r.ask(ctx, from, to), s.Stop())
}

func (r *recording) ask(ctx context.Context, from, to int) error {
	if r.kind.Over {
		return r.over(ctx, from, to)
	}
	do := r.traffic.Do
	if r.kind.Reloads > 0 {
		each := max((to-from)/r.kind.Reloads, 50)
		do = func(ctx context.Context, i int) error {
			if n := i - from; n%each == each-1 {
				if err := r.reload(ctx); err != nil {
					return err
				}
			}
			return r.traffic.Do(ctx, i)
		}
	}
	res, err := load.Closed(ctx, load.Options{
		Name: r.kind.Name, Workers: 6, Requests: to - from, First: from, Drain: time.Minute,
	}, do)
	return errors.Join(err, failed(res))
}

// failed is an error if requests were not answered.
func failed(res load.Result) error {
	if res.Answered < res.Requests {
		lost := res.Requests - res.Answered
		return fmt.Errorf("%d of %d requests were not answered: %v", lost, res.Requests, res.Errors)
	}
	return nil
}

// reload has the other checkpoint take over, after the last one has. Other workers go on asking.
func (r *recording) reload(ctx context.Context) error {
	r.reloading.Lock()
	defer r.reloading.Unlock()
	r.serving = 1 - r.serving
	if err := r.point(r.serving); err != nil {
		return err
	}
	return r.traffic.send(ctx, "POST", "/v1/models/shop:reload", `{"wait":true}`)
}

// times is how many requests come for each that could be answered.
const times = 3

// over asks for more than can be answered: it finds out first how much that is.
func (r *recording) over(ctx context.Context, from, to int) error {
	first := (to - from) / 8
	res, err := load.Closed(ctx, load.Options{Name: "capacity", Workers: 4, Requests: first, First: from}, r.traffic.Do)
	if err := errors.Join(err, failed(res)); err != nil {
		return err
	}
	r.traffic.Deadline = time.Duration(20 / res.Throughput * float64(time.Second)) // that of twenty requests
	res, err = load.Open(ctx, load.Options{
		Name: r.kind.Name, Arrivals: workload.Poisson(times*res.Throughput, r.Seed),
		Requests: to - from - first, First: from + first, InFlight: 4096,
	}, r.traffic.Do)
	return errors.Join(err, failed(res))
}

// pack writes the log where it belongs.
func (r *recording) pack() error {
	in, err := os.Open(r.log)
	if err != nil {
		return err
	}
	defer in.Close()
	out, err := os.Create(filepath.Join(r.Dir, r.kind.Name+".log.gz"))
	if err != nil {
		return err
	}
	z, _ := gzip.NewWriterLevel(out, gzip.BestCompression) // a level that there is
	_, err = fmt.Fprintf(z, "# %s: %d requests, seed %d\n", r.kind.Name, r.Requests, r.Seed)
	if err == nil {
		_, err = io.Copy(z, in)
	}
	return errors.Join(err, z.Close(), out.Close())
}

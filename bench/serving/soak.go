package serving

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"grebe/bench/load"
	"grebe/internal/config"
	"grebe/workload"
)

// SoakOptions describe a soak: an open loop beside which items change and the model is reloaded. Zero means the
// default.
type SoakOptions struct {
	Options
	// Folder has what Make wrote, and the server reads it: its link to a checkpoint is changed before each reload.
	Folder string
	Reload time.Duration // from the start of a reload to the next; a minute
	Swap   time.Duration // from the start of a swap of the catalog to the next; 20 s
	Change int           // items that a swap changes; 1,000
}

// Soaked is what a soak saw.
type Soaked struct {
	Loop
	Failed   int            `json:"failed"`   // requests that were not answered
	Reloads  Changes        `json:"reloads"`  // of the model
	Swaps    Changes        `json:"swaps"`    // of the catalog
	Memory   []Memory       `json:"memory"`   // of the server, each kind that it reports
	Problems []string       `json:"problems"` // the first of each kind of failed change
	Versions map[string]int `json:"versions"` // reloads that ended, by the version that served then
}

// Changes counts changes of the server that the soak asked for.
type Changes struct {
	Done    int     `json:"done"`   // they took effect
	Failed  int     `json:"failed"` // they were refused, or took no effect
	Longest float64 `json:"longest_s"`
}

// Memory is one kind of the server's memory, in bytes: medians over the first, middle and last fifth of the samples
// that were taken while no reload ran, and the most of all samples.
type Memory struct {
	Name    string `json:"name"`
	Samples int    `json:"samples"` // taken while no reload ran
	Start   int64  `json:"start"`   // with what a server takes when it is first asked
	Middle  int64  `json:"middle"`
	End     int64  `json:"end"`
	Most    int64  `json:"most"`
}

// Memory may grow by grownShare from the middle to the end, and always by grownBytes: garbage that Go's collector has
// not looked at yet. The first fifth does not count, because caches fill in it.
const (
	grownShare   = 0.02
	grownBytes   = 32 << 20
	leastSamples = 10
)

// Growth is the share by which memory grew from the middle to the end; below zero, it shrank.
func (m *Memory) Growth() float64 {
	if m.Middle == 0 {
		return 0
	}
	return float64(m.End-m.Middle) / float64(m.Middle)
}

// Flat reports whether memory grew by no more than 2 % or 32 MiB from the middle to the end.
func (m *Memory) Flat() bool { return m.Growth() <= grownShare || m.End-m.Middle <= grownBytes }

// err says why a soak does not show that memory is flat; nil: it does.
func (m *Memory) err() error {
	switch {
	case m.Samples < leastSamples:
		return fmt.Errorf("serving: %s memory: %d samples without a reload, want %d: run longer, or reload less often",
			m.Name, m.Samples, leastSamples)
	case !m.Flat():
		return fmt.Errorf("serving: %s memory grew by %.1f %% from the middle to the end, from %d to %d bytes", m.Name,
			100*m.Growth(), m.Middle, m.End)
	}
	return nil
}

// Err says what was wrong in a soak: requests or changes that failed, no change that took effect, or memory that grew.
func (s *Soaked) Err() error {
	var all []error
	if s.Failed > 0 {
		all = append(all, fmt.Errorf("serving: %d of %d requests failed", s.Failed, s.Requests))
	}
	for _, c := range []struct {
		what string
		n    Changes
	}{{"reloads", s.Reloads}, {"catalog swaps", s.Swaps}} {
		if c.n.Failed > 0 || c.n.Done == 0 {
			all = append(all, fmt.Errorf("serving: %d %s took effect and %d did not", c.n.Done, c.what, c.n.Failed))
		}
	}
	for _, p := range s.Problems {
		all = append(all, errors.New(p))
	}
	for i := range s.Memory {
		all = append(all, s.Memory[i].err())
	}
	return errors.Join(all...)
}

// soak is one soak.
type soak struct {
	SoakOptions
	client    *client
	model     config.Model // as the server's configuration has it
	end       chan struct{}
	reloading atomic.Bool
	samples   []sample // of the sampler alone

	mu  sync.Mutex
	out Soaked
}

// sample is the server's memory at one moment.
type sample struct {
	calm  bool // no reload ran
	bytes [len(kinds)]int64
}

// kinds are the kinds of memory, and the metrics that have them. The device's is that of all GPUs together.
var kinds = [...]struct{ name, metric string }{
	{"resident", "process_resident_memory_bytes"},
	{"GPU", "grebe_device_used_bytes"},
}

// Soak sends an open loop of requests, and changes items and checkpoints beside it. It returns an error if it could
// not be run; Soaked.Err has what went wrong in it.
func Soak(ctx context.Context, o SoakOptions) (*Soaked, error) {
	s, err := o.prepare()
	if err != nil {
		return nil, err
	}
	defer s.client.http.CloseIdleConnections()
	if err := s.serves(ctx); err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var beside sync.WaitGroup
	for _, f := range []func(context.Context){s.reload, s.swap, s.watch} {
		beside.Go(func() { f(ctx) })
	}
	lo := s.run(fmt.Sprintf("%.4g/s", s.Rates[0]), s.SLO, 0)
	lo.Arrivals = workload.Poisson(s.Rates[0], s.Seed)
	r, err := load.Open(ctx, lo, s.client.asking(s.deadline(s.SLO)))
	close(s.end)
	if err != nil {
		cancel()
	}
	beside.Wait()
	if err != nil {
		return nil, err
	}
	s.out.Loop, s.out.Failed = s.client.loop(r, 0), r.Requests-r.Answered
	s.out.Memory = summarise(s.samples)
	return &s.out, nil
}

func (o *SoakOptions) prepare() (*soak, error) {
	if err := o.Options.prepare(); err != nil {
		return nil, err
	}
	if len(o.Rates) != 1 || len(o.Clients) > 0 {
		return nil, errors.New("serving: a soak has one rate, and no clients")
	}
	if o.Candidates > 0 {
		return nil, errors.New("serving: a soak asks for recommendations: the items that it changes have no tokens")
	}
	set(&o.Reload, time.Minute)
	set(&o.Swap, 20*time.Second)
	set(&o.Change, 1000)
	loaded, err := config.Load(config.Source{File: filepath.Join(o.Folder, configFile)})
	if err != nil {
		return nil, fmt.Errorf("serving: read what --make wrote: %w", err)
	}
	s := &soak{SoakOptions: *o, model: loaded.Config.Models[0], end: make(chan struct{})}
	if len(s.model.Codes.Size) == 0 {
		return nil, fmt.Errorf("serving: %s: model %s has no codes", o.Folder, s.model.Name)
	}
	if s.client = newClient(&s.Options); s.Model == "" {
		s.Model = s.model.Name
	}
	s.out.Versions = map[string]int{}
	return s, nil
}

// every calls f at intervals until the load ends. Changes that run then are waited for.
func (s *soak) every(ctx context.Context, interval time.Duration, f func(n int)) {
	tick := time.NewTicker(interval)
	defer tick.Stop()
	for n := 0; ; n++ {
		select {
		case <-ctx.Done():
			return
		case <-s.end:
			return
		case <-tick.C:
			f(n)
		}
	}
}

// note counts a change.
func (s *soak) note(of *Changes, what string, began time.Time, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	of.Longest = max(of.Longest, time.Since(began).Seconds())
	if err == nil {
		of.Done++
		return
	}
	if of.Failed++; of.Failed == 1 {
		s.out.Problems = append(s.out.Problems, fmt.Sprintf("serving: %s: %v", what, err))
	}
}

// serves returns an error if the server has no such model.
func (s *soak) serves(ctx context.Context) error {
	_, err := s.version(ctx)
	return err
}

// served is what the server says of a model.
type served struct {
	Version string `json:"version"`
	Reload  struct {
		State string `json:"state"`
		Error string `json:"error"`
	} `json:"reload"`
}

func (s *soak) version(ctx context.Context) (out served, err error) {
	return out, s.client.call(ctx, http.MethodGet, "/v1/models/"+s.model.Name, nil, &out)
}

// reload has the link name the other checkpoint and the server load it, again and again.
func (s *soak) reload(ctx context.Context) {
	s.every(ctx, s.Reload, func(int) {
		began := time.Now()
		s.reloading.Store(true)
		version, err := s.reloadOnce(ctx)
		s.reloading.Store(false)
		s.note(&s.out.Reloads, "reload", began, err)
		if err == nil {
			s.mu.Lock()
			s.out.Versions[version]++
			s.mu.Unlock()
		}
	})
}

// reloadOnce returns the version that serves afterwards. A reload that was refused, failed, was rolled back or changed
// nothing is an error.
func (s *soak) reloadOnce(ctx context.Context) (string, error) {
	before, err := s.version(ctx)
	if err != nil {
		return "", err
	}
	if err := turnLink(s.model.Path); err != nil {
		return "", err
	}
	verb := "/v1/models/" + s.model.Name + ":reload"
	var now served
	err = s.client.call(ctx, http.MethodPost, verb, []byte(`{"wait":true}`), &now)
	for err == nil && !slices.Contains([]string{"", "done", "failed", "rolled_back"}, now.Reload.State) {
		if err = pause(ctx, time.Second/2); err == nil {
			now, err = s.version(ctx)
		}
	}
	switch {
	case err != nil:
		return "", err
	case now.Reload.State != "done":
		return "", fmt.Errorf("it ended as %q: %s", now.Reload.State, now.Reload.Error)
	case now.Version == before.Version:
		return "", fmt.Errorf("version %s serves as before", now.Version)
	}
	return now.Version, nil
}

// turnLink makes the link to one of Make's checkpoints name the other one.
func turnLink(path string) error {
	now, err := os.Readlink(path)
	if err != nil {
		return fmt.Errorf("the model's path is a link to one of two checkpoints: %w", err)
	}
	at := slices.Index(checkpoints[:], now)
	if at < 0 {
		return fmt.Errorf("%s names %s, not one of %v", path, now, checkpoints)
	}
	return link(path, checkpoints[1-at])
}

// swap gives items other codes and waits until they are generated, again and again.
func (s *soak) swap(ctx context.Context) {
	s.every(ctx, s.Swap, func(n int) {
		began := time.Now()
		s.note(&s.out.Swaps, "catalog swap", began, s.swapOnce(ctx, n))
	})
}

func (s *soak) swapOnce(ctx context.Context, n int) error {
	var answer struct {
		Replaced int    `json:"replaced"`
		Version  string `json:"version"`
	}
	if err := s.client.call(ctx, http.MethodPost, "/v1/items:batch", s.changed(n), &answer); err != nil {
		return err
	}
	if answer.Replaced == 0 {
		return errors.New("no item changed")
	}
	limit, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	for {
		var catalog struct {
			Models []struct{ Model, Version string } `json:"models"`
		}
		if err := s.client.call(limit, http.MethodGet, "/v1/catalog", nil, &catalog); err != nil {
			return fmt.Errorf("wait for version %s: %w", answer.Version, err)
		}
		for _, m := range catalog.Models {
			if m.Model == s.model.Name && m.Version == answer.Version {
				return nil
			}
		}
		if err := pause(limit, 100*time.Millisecond); err != nil {
			return fmt.Errorf("version %s is not generated: %w", answer.Version, err)
		}
	}
}

// changed are the lines of swap n: items with other codes, and no tokens.
func (s *soak) changed(n int) []byte {
	r := rand.New(rand.NewPCG(s.Seed, uint64(n)+1<<33))
	first := n * s.Change % max(s.Items-s.Change+1, 1)
	var b bytes.Buffer
	for i := range min(s.Change, s.Items) {
		codes := make([]int, len(s.model.Codes.Size))
		for l := range codes {
			codes[l] = r.IntN(int(s.model.Codes.Size[l]))
		}
		text, err := json.Marshal(codes)
		if err != nil {
			panic(err) // a list of numbers has a text
		}
		fmt.Fprintf(&b, `{"id":"i%d","codes":%s,"attributes":{"tenth":["%d"]}}`+"\n", first+i, text, r.IntN(share))
	}
	return b.Bytes()
}

// watch samples the server's memory once a second, and a last time when the load has ended.
func (s *soak) watch(ctx context.Context) {
	s.sample(ctx)
	s.every(ctx, min(time.Second, s.Length/20), func(int) { s.sample(ctx) })
	s.sample(ctx)
}

func (s *soak) sample(ctx context.Context) {
	calm := !s.reloading.Load()
	values, err := s.client.metrics(ctx)
	if err != nil {
		s.mu.Lock()
		defer s.mu.Unlock()
		if !slices.ContainsFunc(s.out.Problems, func(p string) bool { return p == err.Error() }) && ctx.Err() == nil {
			s.out.Problems = append(s.out.Problems, err.Error())
		}
		return
	}
	out := sample{calm: calm && !s.reloading.Load()}
	for i, k := range kinds {
		out.bytes[i] = int64(values[k.metric])
	}
	s.samples = append(s.samples, out)
}

// summarise returns each kind of memory that the server reports.
func summarise(samples []sample) []Memory {
	var out []Memory
	for i, k := range kinds {
		var calm []int64
		m := Memory{Name: k.name}
		for _, s := range samples {
			if s.calm {
				calm = append(calm, s.bytes[i])
			}
			m.Most = max(m.Most, s.bytes[i])
		}
		if m.Samples = len(calm); m.Most == 0 {
			continue
		}
		if len(calm) == 0 {
			out = append(out, m)
			continue
		}
		fifth := max(len(calm)/5, 1)
		middle := (len(calm) - fifth) / 2
		m.Start, m.Middle = median(calm[:fifth]), median(calm[middle:middle+fifth])
		m.End = median(calm[len(calm)-fifth:])
		out = append(out, m)
	}
	return out
}

func median[T cmp.Ordered](of []T) T {
	sorted := slices.Sorted(slices.Values(of))
	return sorted[len(sorted)/2]
}

// pause waits.
func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(d):
		return nil
	}
}

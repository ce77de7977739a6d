// Package store measures how long an entry of KV is looked up in a full store, alone and beside users that are
// published.
//
// The store is as a server has it: the default policy with predictions, and a disk below it on which all entries are.
// Windows alone and beside take turns, so that a busy machine disturbs both.
package store

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"slices"
	"time"

	"grebe/bench/report"
	"grebe/compute"
	"grebe/kv"
	"grebe/kv/disk"
	"grebe/plan"
	"grebe/pool"
)

// Options of a run. Zero values mean the default.
type Options struct {
	Entries int           // 500,000
	Rate    float64       // users published per second; 1,000
	Window  time.Duration // 2 s
	Rounds  int           // windows of each kind; 8
	Dir     string        // where the disk's files go; a temporary folder
	JSON    bool
}

func (o *Options) setDefaults() {
	if o.Entries == 0 {
		o.Entries = 500_000
	}
	if o.Rate == 0 {
		o.Rate = 1000
	}
	if o.Window == 0 {
		o.Window = 2 * time.Second
	}
	if o.Rounds == 0 {
		o.Rounds = 8
	}
}

// The bars.
const (
	mostRatio = 2.0
	leastGets = 20_000
	leastRate = .95 // of the users that are to be published
)

// Times are of lookups, in microseconds.
type Times struct {
	Gets int     `json:"gets"`
	Mean float64 `json:"mean_us"`
	P50  float64 `json:"p50_us"`
	P99  float64 `json:"p99_us"`
	Max  float64 `json:"max_us"`
}

// Report is what a run found.
type Report struct {
	Entries   int     `json:"entries"`
	Below     int     `json:"below"`     // of them, on disk too
	Rate      float64 `json:"rate"`      // users to be published per second
	Published float64 `json:"published"` // users per second that were
	Alone     Times   `json:"alone"`
	Beside    Times   `json:"beside"`
	Medians   float64 `json:"ratio_of_medians"`
	Means     float64 `json:"ratio_of_means"`
	Passed    bool    `json:"passed"`
}

// judge compares the two kinds of windows.
func (r *Report) judge() {
	r.Medians, r.Means = r.Beside.P50/r.Alone.P50, r.Beside.Mean/r.Alone.Mean
	r.Passed = r.Medians <= mostRatio && r.Means <= mostRatio && r.Published >= leastRate*r.Rate &&
		min(r.Alone.Gets, r.Beside.Gets) >= leastGets
}

// timesOf sums up lookups, which it sorts.
func timesOf(all []time.Duration) (t Times) {
	if t.Gets = len(all); t.Gets == 0 {
		return t
	}
	slices.Sort(all)
	us := func(d time.Duration) float64 { return float64(d) / float64(time.Microsecond) }
	var sum time.Duration
	for _, d := range all {
		sum += d
	}
	t.Mean, t.P50 = us(sum)/float64(len(all)), us(report.Percentile(all, 50))
	t.P99, t.Max = us(report.Percentile(all, 99)), us(all[len(all)-1])
	return t
}

// Run measures and writes a report.
func Run(ctx context.Context, o Options, w io.Writer) (*Report, error) {
	o.setDefaults()
	dir, err := os.MkdirTemp(o.Dir, "grebe-kv-")
	if err != nil {
		return nil, err
	}
	defer os.RemoveAll(dir)
	r, err := run(ctx, &o, dir)
	if err != nil {
		return nil, fmt.Errorf("bench kv: %w", err)
	}
	if o.JSON {
		return r, report.JSON(w, r)
	}
	return r, r.write(w)
}

// An entry is small, so that half a million fit: what is measured is the store's books, not its bytes.
var shape = compute.Shape{Layers: 1, Hidden: 64, Heads: 1, KVHeads: 1, HeadDim: 64, Inter: 64, KV: compute.BF16}

const (
	page      = 256
	mostUsers = 2048 // that are published in turn
)

// bench is a full store.
type bench struct {
	o     *Options
	store *kv.Store
	items []plan.Key
	users []plan.Key
	rng   *rand.Rand
}

func run(ctx context.Context, o *Options, dir string) (*Report, error) {
	users := min(mostUsers, (o.Entries+1)/2)
	items := o.Entries - users
	used := int64(items)*int64(shape.ChunkBytes(1, false)) + int64(users)*int64(shape.ChunkBytes(kv.ChainTokens, false))
	p, err := pool.New(used*5/4+(1<<20), page) // more than half of it is used: users are written below
	if err != nil {
		return nil, err
	}
	defer p.Close()
	d, err := disk.Open(dir, disk.Options{Budget: 16 << 30})
	if err != nil {
		return nil, err
	}
	defer d.Close()
	b := &bench{o: o, store: kv.New(shape, p), rng: rand.New(rand.NewPCG(1, 2))}
	defer b.store.Close()
	if err := b.store.SetPolicy("default"); err != nil {
		return nil, err
	}
	if err := b.store.Predict(); err != nil {
		return nil, err
	}
	b.store.SetDisk(d)
	if err := b.fill(ctx, items, users); err != nil {
		return nil, fmt.Errorf("fill the store: %w", err)
	}
	r := &Report{Rate: o.Rate}
	for kind := range plan.Beam + 1 {
		r.Entries += b.store.Stats(kind).Entries
	}
	r.Below = d.Stats().Entries
	if err := b.measure(ctx, r); err != nil {
		return nil, err
	}
	r.judge()
	return r, nil
}

// fill publishes all entries and has them written below.
func (b *bench) fill(ctx context.Context, items, users int) error {
	for i := range items {
		key := kv.KeyOf(plan.Key{}, []int32{int32(i)}, "item")
		e, err := b.store.Reserve(kv.Exact, 1, nil)
		if err != nil {
			return err
		}
		b.store.Publish(plan.Item, key, nil, e)
		e.Release()
		b.items = append(b.items, key)
		if i%64 == 63 { // fewer than may wait to be written
			if err := b.store.Written(ctx); err != nil {
				return err
			}
		}
	}
	for i := range users {
		b.users = append(b.users, kv.KeyOf(plan.Key{}, []int32{int32(i)}, "user"))
		if err := b.publish(i); err != nil {
			return err
		}
	}
	b.store.Flush()
	return ctx.Err()
}

// publish publishes the user of a turn, with other tokens than the last time.
func (b *bench) publish(turn int) error {
	tokens := make([]int32, kv.ChainTokens)
	for i := range tokens {
		tokens[i] = int32(turn + i)
	}
	e, err := b.store.Reserve(kv.Chain, len(tokens), nil)
	if err != nil {
		return err
	}
	b.store.Publish(plan.User, b.users[turn%len(b.users)], tokens, e)
	e.Release()
	return nil
}

// measure looks entries up in windows alone and beside users that are published.
func (b *bench) measure(ctx context.Context, r *Report) error {
	var alone, beside []time.Duration
	published := 0
	var took time.Duration
	for range b.o.Rounds {
		var err error
		if alone, err = b.gets(ctx, alone); err != nil {
			return err
		}
		stop, ended := make(chan struct{}), make(chan error, 1)
		start, n := time.Now(), 0
		go func() {
			var err error
			n, err = b.publishUntil(stop, published)
			ended <- err
		}()
		beside, err = b.gets(ctx, beside)
		close(stop)
		failed := <-ended
		took += time.Since(start)
		if published += n; err != nil || failed != nil {
			return errors.Join(err, failed)
		}
		b.store.Flush() // the next window is alone
	}
	r.Alone, r.Beside, r.Published = timesOf(alone), timesOf(beside), float64(published)/took.Seconds()
	return nil
}

// gets looks entries up for a window.
func (b *bench) gets(ctx context.Context, times []time.Duration) ([]time.Duration, error) {
	for end := time.Now().Add(b.o.Window); ; {
		key := b.items[b.rng.IntN(len(b.items))]
		start := time.Now()
		e, _ := b.store.Get(key)
		now := time.Now()
		if e == nil {
			return nil, errors.New("an entry is gone")
		}
		e.Release()
		times = append(times, now.Sub(start))
		if now.After(end) {
			return times, ctx.Err()
		}
	}
}

// publishUntil publishes users at the rate until it is stopped, and returns how many.
func (b *bench) publishUntil(stop <-chan struct{}, first int) (n int, err error) {
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for start := time.Now(); ; {
		select {
		case <-stop:
			return n, nil
		case <-tick.C:
		}
		for due := int(time.Since(start).Seconds() * b.o.Rate); n < due; n++ {
			if err := b.publish(first + n); err != nil {
				return n, err
			}
		}
	}
}

func (r *Report) write(w io.Writer) error {
	fmt.Fprintf(w, "Lookups in a store of %d entries, %d of them on disk too; beside %.0f of %.0f users published per "+
		"second\n\n",
		r.Entries, r.Below, r.Published, r.Rate)
	t := report.Table(w)
	fmt.Fprintln(t, "\tgets\tmean µs\tP50 µs\tP99 µs\tmax µs\t")
	row := func(name string, x *Times) {
		fmt.Fprintf(t, "%s\t%d\t%.2f\t%.2f\t%.2f\t%.0f\t\n", name, x.Gets, x.Mean, x.P50, x.P99, x.Max)
	}
	row("alone", &r.Alone)
	row("beside", &r.Beside)
	fmt.Fprintf(t, "ratio (≤ %g)\t\t%.2f\t%.2f\t%.2f\t\t\n", mostRatio, r.Means, r.Medians, r.Beside.P99/r.Alone.P99)
	if err := t.Flush(); err != nil {
		return err
	}
	verdict := "FAIL"
	if r.Passed {
		verdict = "pass"
	}
	_, err := fmt.Fprintf(w, "\n%s: means and medians at most %g times alone, over %d lookups or more each, %.0f %% of "+
		"the users published or more\n",
		verdict, mostRatio, leastGets, 100*leastRate)
	return err
}

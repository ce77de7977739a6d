package kube

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	"grebe/cluster/coord"
	"grebe/cluster/coord/kube/kubetest"
)

// Clients read, write and delete a few keys while links, watches and the API server fail at random. Porcupine looks for
// an order in which every successful call saw the state that the calls before it left. A call without an answer may
// have been carried out, or may be later. All values differ, so a value stands for the version that it had.

// outcome is how a call ended.
type outcome int

const (
	done outcome = iota
	refused
	unknown
)

// call is one operation: a read of old, or a change from old to new. Empty: the key is absent.
type call struct {
	key      string
	write    bool
	old, new string
	outcome  outcome
}

var calls = porcupine.NondeterministicModel{
	Partition: func(all []porcupine.Operation) [][]porcupine.Operation {
		by := map[string][]porcupine.Operation{}
		for _, o := range all {
			key := o.Input.(call).key
			by[key] = append(by[key], o)
		}
		var out [][]porcupine.Operation
		for _, list := range by {
			out = append(out, list)
		}
		return out
	},
	Init: func() []any { return []any{""} },
	Step: func(state, in, _ any) []any {
		c, now := in.(call), state.(string)
		same := now == c.old
		switch {
		case !c.write && same:
			return []any{now}
		case c.write && c.outcome == done && same:
			return []any{c.new}
		case c.write && c.outcome == refused && !same:
			return []any{now}
		case c.write && c.outcome == unknown && same:
			return []any{now, c.new}
		case c.write && c.outcome == unknown:
			return []any{now}
		}
		return nil
	},
}

// campaign is one run.
type campaign struct {
	w     *world
	clock atomic.Int64
	names atomic.Int64 // of values

	mu      sync.Mutex
	rng     *rand.Rand
	keys    int // that the clients use
	history []porcupine.Operation
	broken  bool // writes forget which version they expect
}

func (c *campaign) random(n int) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.rng.IntN(n)
}

func (c *campaign) record(id int, o call, began int64) {
	end := c.clock.Add(1)
	if o.outcome == unknown {
		end = math.MaxInt64 // it may still be on its way
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.history = append(c.history, porcupine.Operation{ClientId: id, Input: o, Call: began, Return: end})
}

// work reads and writes until ctx ends.
func (c *campaign) work(ctx context.Context, id int, client *Client) {
	for ctx.Err() == nil {
		key := fmt.Sprint("x/", c.random(c.keys))
		began := c.clock.Add(1)
		e, err := client.Get(ctx, key)
		if err == nil {
			c.record(id, call{key: key, old: string(e.Data)}, began)
			c.change(ctx, id, client, e)
		}
		time.Sleep(time.Duration(c.random(1000)) * time.Millisecond)
	}
}

// change writes or deletes a key that was read.
func (c *campaign) change(ctx context.Context, id int, client *Client, e coord.Entry) {
	o := call{key: e.Key, write: true, old: string(e.Data)}
	began := c.clock.Add(1)
	var err error
	if e.Version != 0 && c.random(4) == 0 {
		err = client.Delete(ctx, e.Key, e.Version)
	} else {
		o.new = fmt.Sprint("v", c.names.Add(1))
		if c.broken {
			time.Sleep(time.Duration(c.random(1000)) * time.Millisecond) // others write meanwhile
			if again, err := client.Get(ctx, e.Key); err == nil {
				e.Version = again.Version
			}
		}
		_, err = client.Swap(ctx, e.Key, []byte(o.new), e.Version, nil)
	}
	switch {
	case errors.Is(err, coord.ErrConflict):
		o.outcome = refused
	case err != nil:
		o.outcome = unknown
	}
	c.record(id, o, began)
}

// fault lets one thing go wrong, for a time.
func (c *campaign) fault(links []*kubetest.Link) {
	w, link, n := c.w, links[c.random(len(links))], 1+c.random(5)
	lasts := time.Duration(c.random(5000)) * time.Millisecond
	switch c.random(12) {
	case 0, 1:
		link.Stall()
		time.AfterFunc(lasts, link.Resume)
	case 2:
		link.Cut()
	case 3:
		w.net.Kill()
		time.Sleep(lasts)
		w.net.Start()
	case 4:
		w.Throttle(n, c.random(4))
	case 5:
		w.Fail(n)
	case 6:
		w.LoseAnswers(n)
	case 7:
		w.Slow(lasts / 4)
		time.AfterFunc(lasts, func() { w.Slow(0) })
	case 8:
		w.Mute(true)
		time.AfterFunc(lasts, func() { w.Mute(false) })
	case 9:
		w.DropWatches(c.random(2) == 0)
	case 10:
		w.Server.Compact()
	case 11:
		w.ForgetDeletions(n)
	}
}

// heal ends all faults.
func (c *campaign) heal(links []*kubetest.Link) {
	time.Sleep(6 * time.Second) // until those that end by themselves have
	each(links, (*kubetest.Link).Resume)
	c.w.Throttle(0, 0)
	c.w.Fail(0)
	c.w.LoseAnswers(0)
	c.w.ForgetDeletions(0)
}

// run lets a number of faults happen, and returns the history.
func (c *campaign) run(t *testing.T, faults int) []porcupine.Operation {
	ctx, cancel := context.WithCancel(t.Context())
	var wait sync.WaitGroup
	var links []*kubetest.Link
	var views []*view
	for id := range 4 {
		client, link := c.w.open(t)
		links = append(links, link)
		views = append(views, watch(t, client, ""))
		announce(t, client, fmt.Sprint("nodes/", id), 3*time.Second)
		wait.Go(func() { c.work(ctx, id, client) })
	}
	time.Sleep(5 * time.Second)
	for range faults {
		c.fault(links)
		time.Sleep(time.Duration(c.random(2000)) * time.Millisecond)
	}
	c.heal(links)
	cancel()
	wait.Wait()

	reader, _ := c.w.open(t)
	time.Sleep(resync + 5*time.Second)
	entries, err := reader.List(t.Context(), "")
	if err != nil {
		t.Fatal(err)
	}
	truth := &view{entries: map[string]coord.Entry{}}
	coord.Event{Kind: coord.Listing, Entries: entries}.Apply(truth.entries)
	for i, v := range views {
		if v.String() != truth.String() {
			t.Errorf("watch %d ends with %q, there are %q", i, v, truth)
		}
	}
	for id := range 4 {
		if string(truth.entries[fmt.Sprint("nodes/", id)].Data) != "up" {
			t.Errorf("process %d is not registered: %q", id, truth)
		}
	}
	if leases := c.w.Names("leases"); len(leases) != 4 {
		t.Errorf("4 processes have %d leases", len(leases))
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.history
}

// virtualCampaign runs in virtual time, and returns porcupine's verdict and the number of calls and of those without an
// answer.
func virtualCampaign(t *testing.T, seed uint64, faults int, broken bool) (ok bool, all, unanswered int) {
	var history []porcupine.Operation
	virtual(t, func(t *testing.T, w *world) {
		c := &campaign{w: w, rng: rand.New(rand.NewPCG(seed, 3)), keys: 6, broken: broken}
		if broken {
			c.keys = 1
		}
		history = c.run(t, faults)
	})
	for _, o := range history {
		if o.Input.(call).outcome == unknown {
			unanswered++
		}
	}
	return porcupine.CheckOperations(calls.ToModel(), history), len(history), unanswered
}

// GREBE_KUBE_FAULTS=1000 is the whole campaign.
func TestRandomFaults(t *testing.T) {
	faults, each := 100, 100
	if v := os.Getenv("GREBE_KUBE_FAULTS"); v != "" {
		var err error
		if faults, err = strconv.Atoi(v); err != nil {
			t.Fatal(err)
		}
	}
	var all, unanswered int
	for seed := range uint64(max(faults/each, 1)) {
		ok, n, lost := virtualCampaign(t, seed, each, false)
		if !ok {
			t.Errorf("seed %d: porcupine rejects the history of %d calls", seed, n)
		}
		all, unanswered = all+n, unanswered+lost
	}
	t.Logf("%d faults: %d calls, %d of them without an answer", faults, all, unanswered)
	if all < faults || unanswered < faults/100 {
		t.Errorf("%d faults hit %d of %d calls", faults, unanswered, all)
	}
}

// A client that writes over what it has not read is found out: the test above can fail.
func TestBrokenSwapIsRejected(t *testing.T) {
	for seed := range uint64(5) {
		if ok, _, _ := virtualCampaign(t, seed, 30, true); !ok {
			return
		}
	}
	t.Error("porcupine accepts all histories of a client without compare-and-swap")
}

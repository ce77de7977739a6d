package hstu

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"grebe/compute"
	"grebe/compute/ref"
	"grebe/embed"
	"grebe/model"
	"grebe/model/safetensors"
)

// away is a store that may be unreachable.
type away struct {
	embed.Store
	is    bool
	trips []int // rows of each, where it is not nil
	fails int   // which of them, once
}

func (a *away) Gather(ctx context.Context, keys []uint64, rows []byte, found []bool) error {
	if a.trips != nil {
		a.trips = append(a.trips, len(keys))
	}
	if a.is || a.trips != nil && len(a.trips) == a.fails {
		return errors.New("the store is away")
	}
	return a.Store.Gather(ctx, keys, rows, found)
}

// liveWorld is a model that retrieves items of a table in a store.
type liveWorld struct {
	m     *Model
	table *embed.Table
	store *away
	rows  []float32 // as they should be
}

// resident writes a checkpoint whose item table has these rows.
func resident(t *testing.T, rows []float32) string {
	t.Helper()
	dir, from := t.TempDir(), fixtureDir("absolute")
	set, err := safetensors.Open(from)
	if err != nil {
		t.Fatal(err)
	}
	defer set.Close()
	var list []safetensors.Named
	items := len(rows) / 32
	for _, name := range set.Names() {
		info, _ := set.Lookup(name)
		flat, err := set.Flat(name)
		if err != nil {
			t.Fatal(err)
		}
		n := safetensors.Named{Name: name, DType: flat.DType, Shape: info.Shape, Data: safetensors.Bytes(flat.Data)}
		if name == tables+"item_id.weight" {
			n.Shape, n.Data = []int{items, 32}, safetensors.Bytes(embed.Bytes(rows))
		}
		list = append(list, n)
	}
	if err := errors.Join(safetensors.Write(filepath.Join(dir, safetensors.SingleFile), list),
		os.WriteFile(filepath.Join(dir, model.ConfigFile), changed(t, "absolute", map[string]any{"num_items": items}),
			0o644)); err != nil {
		t.Fatal(err)
	}
	return dir
}

func newLiveWorld(t *testing.T, dev compute.Device, dtype string, items int, r *rand.Rand) *liveWorld {
	t.Helper()
	w := &liveWorld{rows: make([]float32, items*32), store: &away{Store: embed.NewMemory(items, 128)}}
	keys := make([]uint64, items)
	for i := range keys {
		keys[i] = uint64(i)
	}
	for i := range w.rows {
		w.rows[i] = float32(r.NormFloat64())
	}
	if err := w.store.Put(t.Context(), keys, embed.Bytes(w.rows)); err != nil {
		t.Fatal(err)
	}
	var err error
	if w.table, err = embed.NewTable(w.store, nil, embed.TableConfig{}); err != nil {
		t.Fatal(err)
	}
	w.m, err = OpenWith(resident(t, w.rows), dev, model.Options{DType: dtype},
		map[string]RowSource{"item_id": FromTable(w.table)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { w.m.Close() })
	return w
}

// put changes rows.
func (w *liveWorld) put(t *testing.T, items []int, r *rand.Rand) {
	t.Helper()
	for _, i := range items {
		row := w.rows[i*32 : (i+1)*32]
		for j := range row {
			row[j] = float32(r.NormFloat64())
		}
		if err := w.table.Put(t.Context(), []uint64{uint64(i)}, embed.Bytes(row)); err != nil {
			t.Fatal(err)
		}
	}
}

// check compares what is found with what a model finds whose checkpoint has these rows.
func (w *liveWorld) check(t *testing.T, what string, dev compute.Device, dtype string, r *rand.Rand) {
	t.Helper()
	want, err := Open(resident(t, w.rows), dev, model.Options{DType: dtype})
	if err != nil {
		t.Fatal(err)
	}
	defer want.Close()
	items := len(w.rows) / 32
	state := make([]float32, 32)
	for range 4 {
		for i := range state {
			state[i] = float32(r.NormFloat64())
		}
		var without []int32
		for i := range int32(items) {
			if r.IntN(5) == 0 {
				without = append(without, i)
			}
		}
		eligible := func(item int32) bool { return item%7 != 3 }
		a, _, err1 := w.m.Retrieve(t.Context(), state, 50, 0, without, eligible)
		b, _, err2 := want.Retrieve(t.Context(), state, 50, 0, without, eligible)
		if err1 != nil || err2 != nil || !slices.Equal(a, b) {
			t.Fatalf("%s: found %v (%v), want %v (%v)", what, a[:min(3, len(a))], err1, b[:min(3, len(b))], err2)
		}
		all := &asked{}
		few, _, err := w.m.Retrieve(t.Context(), state, items, 0, without, all.eligible(eligible))
		if err != nil || len(few) >= items {
			t.Fatalf("%s: found %d of %d items, %v", what, len(few), items, err)
		}
		all.check(t, items, without)
	}
}

// Items of a table in a store are retrieved with the scores of a model whose checkpoint has the same rows, to the bit,
// also when rows have changed: few, so many that the base is read again, and all at once.
func TestRetrieveFromATable(t *testing.T) {
	on := devices(t)
	on["retrieving"] = ref.Retrieving(on["ref"])
	for device, dev := range on {
		t.Run(device, func(t *testing.T) {
			dtype := "f32"
			if device == "retrieving" {
				dtype = "bf16"
			}
			r := rand.New(rand.NewPCG(8, 9))
			items := 2000
			if device == "cpu" {
				items = indexRows + 1500 // two blocks
			}
			w := newLiveWorld(t, dev, dtype, items, r)
			w.check(t, "at first", dev, dtype, r)
			for range 3 {
				w.put(t, []int{r.IntN(items), r.IntN(items), items - 1}, r)
				w.check(t, "some changed", dev, dtype, r)
			}
			many := r.Perm(items)[:foldChanged+200]
			w.put(t, many, r)
			w.check(t, "many changed", dev, dtype, r)
			w.settled(t)
			w.check(t, "many changed and read", dev, dtype, r)
			if v := w.m.live.now.Load(); len(v.items) > foldChanged {
				t.Errorf("%d items are beside the base still", len(v.items))
			}
			x := w.m.live
			row := make([]float32, 32)
			copy(w.rows[64:], row)
			if err := w.store.Put(t.Context(), []uint64{2}, embed.Bytes(row)); err != nil { // which the table does not notice
				t.Fatal(err)
			}
			x.change(nil)
			w.settled(t)
			w.check(t, "all changed", dev, dtype, r)
		})
	}
}

// settled waits until the goroutine has read what has changed.
func (w *liveWorld) settled(t *testing.T) {
	t.Helper()
	x := w.m.live
	for {
		x.mu.Lock()
		busy := x.all > 0 || len(x.changed) > foldChanged
		x.mu.Unlock()
		if !busy && !x.behind(x.now.Load()) {
			return
		}
		if t.Context().Err() != nil {
			t.Fatal("the base is not read again")
		}
		runtime.Gosched()
		if _, _, err := w.m.Retrieve(t.Context(), make([]float32, 32), 1, 0, nil, nil); err != nil {
			t.Fatal(err)
		}
	}
}

// While the store does not answer, items have the vectors that they had, and the model says so.
func TestRetrieveInAnOutage(t *testing.T) { synctest.Test(t, inAnOutage) }

func inAnOutage(t *testing.T) {
	dev, r := ref.New(), rand.New(rand.NewPCG(3, 1))
	w := newLiveWorld(t, dev, "f32", 300, r)
	state := make([]float32, 32)
	for i := range state {
		state[i] = float32(math.Sin(float64(i)))
	}
	before, _, err := w.m.Retrieve(t.Context(), state, 300, 0, nil, nil)
	if err != nil || w.m.Stale() {
		t.Fatalf("at first: stale %v, %v", w.m.Stale(), err)
	}
	w.put(t, []int{5}, r)
	w.store.is = true
	got, _, err := w.m.Retrieve(t.Context(), state, 300, 0, nil, nil)
	if err != nil || !w.m.Stale() || !slices.Equal(got, before) {
		t.Errorf("in an outage: stale %v, %v", w.m.Stale(), err)
	}
	w.store.trips = []int{}
	for range 5 {
		if _, _, err := w.m.Retrieve(t.Context(), state, 300, 0, nil, nil); err != nil {
			t.Error(err)
		}
	}
	time.Sleep(firstRetry)
	for range 5 {
		if _, _, err := w.m.Retrieve(t.Context(), state, 300, 0, nil, nil); err != nil {
			t.Error(err)
		}
	}
	if len(w.store.trips) != 1 {
		t.Errorf("the store that is away was asked %d times in a second", len(w.store.trips))
	}
	time.Sleep(firstRetry)
	gone, cancel := context.WithCancel(t.Context())
	cancel()
	w.m.live.turn <- struct{}{}
	if _, _, err := w.m.Retrieve(gone, state, 3, 0, nil, nil); !errors.Is(err, context.Canceled) {
		t.Errorf("when nobody waits: %v", err)
	}
	<-w.m.live.turn
	w.store.is = false
	w.check(t, "after the outage", dev, "f32", r)
	if w.m.Stale() {
		t.Error("stale after the outage")
	}
}

// While all items wait to be read again, those that have been read since they changed keep their new vectors.
func TestRetrieveKeepsWhatWasReadUntilAllIs(t *testing.T) {
	every := make([]int32, mostChanged+100)
	for i := range every {
		every[i] = int32(i)
	}
	for what, rows := range map[string][]int32{"all at once": nil, "too many": every} {
		dev, r := ref.New(), rand.New(rand.NewPCG(5, 6))
		w := newLiveWorld(t, dev, "f32", len(every), r)
		w.put(t, []int{5, 17, len(every) - 1}, r)
		w.check(t, what+": three changed", dev, "f32", r)
		w.store.is = true // so that nothing is read
		w.m.live.change(rows)
		w.check(t, what+": and all are to be read", dev, "f32", r)
		if !w.m.Stale() {
			t.Error(what, "is not stale")
		}
	}
}

// Where the store fails once while the base is read again, what it gave before is not read a second time.
func TestRetrieveReadsAFailedBatchAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		dev, r := ref.New(), rand.New(rand.NewPCG(2, 8))
		w := newLiveWorld(t, dev, "f32", 1000, r)
		w.store.trips, w.store.fails = []int{}, 3
		w.m.live.change(nil)
		time.Sleep(2 * firstRetry)
		if want := []int{256, 256, 256, 256, 232}; !slices.Equal(w.store.trips, want) || w.m.Stale() {
			t.Errorf("rows are read in trips of %v, want %v; stale %v", w.store.trips, want, w.m.Stale())
		}
		w.check(t, "after that", dev, "f32", r)
	})
}

// scarce is a device that has no memory for so many tables of products.
type scarce struct {
	compute.Device
	compute.Multiplier
	left int
}

func (d *scarce) Linear(dt compute.DType, w ...compute.Tensor) (compute.Linear, error) {
	if d.left--; d.left >= 0 {
		return nil, compute.ErrNoMemory
	}
	return d.Device.Linear(dt, w...)
}

// Where a device has no memory, what nobody uses any more is collected, and the block is made once more, but not again.
func TestBlockIsMadeOnceMoreWithoutMemory(t *testing.T) {
	dev := devices(t)["cpu"]
	for left, ok := range []bool{true, true, false} {
		d := &scarce{dev, dev.(compute.Multiplier), left}
		reads := 0
		_, err := newBlock(d, 32, 0, 8, func(int, []float32) error { reads++; return nil })
		if reads != 1 || ok != (err == nil) || !ok && !errors.Is(err, compute.ErrNoMemory) {
			t.Errorf("no memory %d times: %d reads, %v", left, reads, err)
		}
	}
}

// Each cause of a failure is told once an hour.
func TestTellsWhyItemsAreNotRead(t *testing.T) {
	var got []string
	x := &live{warn: func(text string) { got = append(got, text) }}
	told, begin := map[string]time.Time{}, time.Unix(1_700_000_000, 0)
	for minute := range 61 {
		now := begin.Add(time.Duration(minute) * time.Minute)
		x.tell(fmt.Errorf("%w: a timeout", errOutage), told, now)
		if minute == 7 {
			x.tell(compute.ErrNoMemory, told, now)
		}
	}
	if len(got) != 3 || !strings.Contains(got[0], "does not answer") || !strings.Contains(got[1], "no memory for them") ||
		got[2] != got[0] {
		t.Errorf("told %q", got)
	}
}

// A store that does not answer when a model is opened stops nothing: items have default rows until it does.
func TestRetrieveOpensInAnOutage(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 1))
	w := newLiveWorld(t, ref.New(), "f32", 100, r)
	w.store.is = true
	m, err := OpenWith(resident(t, w.rows), ref.New(), model.Options{DType: "f32"},
		map[string]RowSource{"item_id": FromTable(w.table)})
	if err != nil {
		t.Fatal(err)
	}
	defer m.Close()
	if !m.Stale() {
		t.Error("rows that were never read are not stale")
	}
	if _, err := OpenWith(resident(t, w.rows), ref.New(), model.Options{DType: "f32"},
		map[string]RowSource{"item_id": &tableSource{m: w.m}}); err == nil {
		t.Error("rows that change without a word are retrieved")
	}
}

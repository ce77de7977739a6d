package reuse

import (
	"testing"
	"testing/synctest"
	"time"

	"grebe/blend"
	"grebe/dispatch/loading"
	"grebe/engine"
	"grebe/kv"
	"grebe/kv/disk"
	"grebe/plan"
	"grebe/pool"
	"grebe/schedule"
)

// An automatic choice counts the time to read blocks, at the pace of the last reads, except for what the first layers
// hide. One slow read does not keep blocks on disk for ever.
func TestASlowDiskMakesBlendingPayLess(t *testing.T) {
	m := newMachine(t, 7, []int32{1, 2, 3}, t.TempDir(), false)
	m.opt.Load = linear{}
	how := &Blend{Budget: blend.Budget{Items: 0.1, History: 1}, Layers: 1}
	var items [][]int32
	for i := range 20 {
		items = append(items, make([]int32, 50))
		items[i][0] = int32(i)
		m.keep(t, plan.Item, m.ItemKey(items[i]), 50, nil)
	}
	m.toDisk(t)
	pays := func() bool {
		v := m.Begin(&Request{User: make([]int32, 100), Items: items, Policy: schedule.User})
		return v.BlendPays(how)
	}
	if !pays() {
		t.Error("half of the tokens are computed, and that does not pay")
	}
	for each, want := range map[time.Duration]bool{time.Microsecond: true, time.Millisecond: false} {
		synctest.Test(t, func(t *testing.T) {
			m.loads.pace = loading.Pace{}
			l := loading.New(1, &m.loads.pace)
			l.Next(1)
			time.Sleep(each)
			l.Came(&kv.Entry{}, nil)
			if pays() != want {
				t.Errorf("with %v for each token that is read, blending pays: %v", each, !want)
			}
			time.Sleep(30 * time.Second)
			if !pays() {
				t.Errorf("with %v for each token that was read long ago, blending does not pay: nothing would be read any more",
					each)
			}
		})
	}
}

// A block that disappears between the decision and the job, from memory or from disk, is computed again by later
// prompts.
func TestABlockThatIsNowhereIsMade(t *testing.T) {
	m := newMachine(t, 7, []int32{1, 2, 3}, t.TempDir(), false)
	items := [][]int32{{5, 6, 7}, {8, 9}}
	how := &Blend{}
	ask := func(between func()) *engine.Result {
		t.Helper()
		v := m.BeginBlend(&Request{User: []int32{3, 4}, Items: items})
		between()
		l, err := m.prompt.Rank(how.Order(), []int32{3, 4}, items)
		if err != nil {
			t.Fatal(err)
		}
		job := &engine.Job{Plan: l.Plan}
		v.Attach(t.Context(), &l, job, how, how.Budget)
		r, err := m.engine.Do(t.Context(), job)
		if err != nil {
			t.Fatal(err)
		}
		v.End(&l, r)
		m.opt.Store.Count(m.opt.Now())
		return r
	}
	ask(func() {}) // items were seen once
	m.keep(t, plan.Item, m.ItemKey(items[1]), 2, nil)
	m.toDisk(t)
	m.keep(t, plan.Item, m.ItemKey(items[0]), 3, nil)
	if r := ask(func() {
		if err := m.DropItem(items...); err != nil {
			t.Fatal(err)
		}
	}); r.Blended != 0 || r.Late != 2 {
		t.Errorf("blocks that are nowhere: %d tokens reused, %d late", r.Blended, r.Late)
	}
	ask(func() {}) // now it is known, and they are made
	if r := ask(func() {}); r.Blended != 5 {
		t.Errorf("%d tokens have a block, want those of both items", r.Blended)
	}
}

// keep publishes an entry of n tokens.
func (m *machine) keep(t *testing.T, kind plan.Kind, key plan.Key, n int, tokens []int32) {
	t.Helper()
	e, err := m.store.Reserve(kv.LayoutOf(kind), n, nil)
	if err != nil {
		t.Fatal(err)
	}
	m.store.PublishFor(m.owner, kind, key, tokens, e)
	e.Release()
}

// toDisk writes all entries to disk and evicts them from memory.
func (m *machine) toDisk(t *testing.T) {
	t.Helper()
	m.store.Flush()
	for n := int(m.opt.Pool.Stats().Total); ; n /= 2 {
		if e, err := m.store.Reserve(kv.Exact, n/m.opt.Shape.ChunkBytes(1, false), nil); err == nil {
			e.Release()
			return
		}
	}
}

// A cache forgets entries that the disk has dropped: it knows no more entries than there are.
func TestACacheForgetsWhatTheDiskDropped(t *testing.T) {
	m := newMachine(t, 7, nil, "", false)
	d, err := disk.Open(t.TempDir(), disk.Options{Budget: 1 << 20, Segment: 64 << 10})
	if err != nil {
		t.Fatal(err)
	}
	m.store.SetDisk(d)
	const items = 400
	for i := range items {
		m.keep(t, plan.Item, m.ItemKey([]int32{int32(i), 2, 3}), 3, nil)
		if i%50 == 0 {
			m.toDisk(t)
		}
	}
	m.toDisk(t)
	st := d.Stats()
	if n := m.Known(); n != st.Entries || n == 0 || st.Evictions == 0 {
		t.Errorf("the cache knows %d entries, and on disk are %d after %d evictions", n, st.Entries, st.Evictions)
	}
	for i := range items {
		key := m.ItemKey([]int32{int32(i), 2, 3})
		e, known := m.store.Lookup(key)
		if _, there := d.Has(key); there != known || there && e.Tier != plan.Disk {
			t.Errorf("item %d is on disk: %v, and is known as %+v, %v", i, there, e, known)
		}
	}
	m.close()
	if err := d.Close(); err != nil {
		t.Error(err)
	}
}

// If a user has more tokens than are kept on disk, and the rest was evicted, the index knows how many are there.
func TestALongUserOnDisk(t *testing.T) {
	m := newMachine(t, 7, nil, t.TempDir(), false)
	user := make([]int32, kv.MostBelow+100)
	e, err := m.store.Reserve(kv.Chain, len(user), nil)
	if err != nil {
		t.Fatal(err)
	}
	key := m.UserKey("u", nil)
	m.store.Publish(plan.User, key, user, e)
	e.Release()
	m.store.Flush()
	for n := int(m.opt.Pool.Stats().Total); ; n /= 2 { // it makes room
		if e, err := m.store.Reserve(kv.Exact, n/m.opt.Shape.ChunkBytes(1, false), nil); err == nil {
			e.Release()
			break
		}
	}
	if e, ok := m.opt.Store.Lookup(key); !ok || e.Tier != plan.Disk || e.Tokens != kv.MostBelow {
		t.Errorf("the index knows %+v, %v, of a user of whom %d tokens are on disk", e, ok, kv.MostBelow)
	}
	v := m.Generate("u", user)
	l := m.prompt.Generate(user)
	job := &engine.Job{Plan: l.Plan}
	v.AttachPrompt(t.Context(), &l, job)
	if n, at := job.Cached(l.User); n != kv.MostBelow || at != plan.Disk {
		t.Errorf("%d tokens came from the %v, want %d from disk", n, at, kv.MostBelow)
	}
	v.EndPrompt(&l, nil)
}

// After Settle nothing is read: entries on disk are computed.
func TestNothingIsReadAfterSettle(t *testing.T) {
	m := newMachine(t, 7, nil, t.TempDir(), false)
	m.Settle()
	l := m.startLoad([]wanted{{key: plan.Key{1}, tokens: 3, parts: []int{0}}})
	parts := []engine.Part{{Tokens: 3}}
	if l.Take(parts, engine.Wait{}); parts[0].Entry != nil {
		t.Error("something came")
	}
	l.release()
}

// heldDisk is a disk whose reads wait for the test.
type heldDisk struct {
	*disk.Store
	reading, goOn chan struct{}
}

func (h *heldDisk) Get(key plan.Key, place func([]byte, int64) ([][]byte, error)) ([]byte, bool, error) {
	h.reading <- struct{}{}
	<-h.goOn
	return h.Store.Get(key, place)
}

// A request ends while a block is read for it: it does not wait, and the block is released when it arrives. Nothing is
// left when the cache is cleared, as for a retired checkpoint.
func TestAReadOutlivesItsRequest(t *testing.T) {
	m := newMachine(t, 7, nil, "", false)
	d, err := disk.Open(t.TempDir(), disk.Options{Budget: 64 << 20})
	if err != nil {
		t.Fatal(err)
	}
	defer m.close()
	slow := &heldDisk{d, make(chan struct{}, 1), make(chan struct{})}
	m.store.SetDisk(slow)
	key := m.ItemKey([]int32{1, 2, 3})
	block, err := m.store.Reserve(kv.Exact, 3, nil)
	if err != nil {
		t.Fatal(err)
	}
	m.store.Publish(plan.Item, key, nil, block)
	block.Release()
	m.store.Flush()
	books := m.opt.Pool.Stats()
	for n := int(books.Total); ; n /= 2 { // all make room
		if e, err := m.store.Reserve(kv.Exact, n/m.opt.Shape.ChunkBytes(1, false), nil); err == nil {
			e.Release()
			break
		}
	}
	l := m.startLoad([]wanted{{key: key, tokens: 3, parts: []int{0}}, {key: key, tokens: 3, parts: []int{1}}})
	<-slow.reading
	l.release() // returns although the read has not ended
	cleared := make(chan error)
	go func() { cleared <- m.Clear(t.Context()) }()
	close(slow.goOn)
	if err := <-cleared; err != nil {
		t.Fatal(err)
	}
	parts := make([]engine.Part, 2)
	if l.Take(parts, engine.Wait{}); len(l.pins) > 0 {
		t.Error("what came for nobody is pinned")
	}
	if e, _ := m.store.Get(key); e != nil || m.store.Below(key) {
		t.Error("a block of a cleared cache is left")
	}
	if used := m.opt.Pool.Stats().Used; used != 0 {
		t.Errorf("%d bytes are in use", used)
	}
	m.close()
	if err := d.Close(); err != nil {
		t.Error(err)
	}
}

// Reads that take longer than estimated make reads dearer, until there have been none for a while.
func TestReadsAreMeasured(t *testing.T) {
	m := newMachine(t, 7, []int32{1, 2}, t.TempDir(), false)
	guess := m.costs.Transfer[plan.Disk]
	if m.Costs().Transfer[plan.Disk] != guess {
		t.Error("costs are not the estimated ones before the first read")
	}
	r := &Request{UserID: "u", User: []int32{11, 12, 13}, Items: [][]int32{{21, 22}}, Policy: schedule.User}
	m.visitOf(t, r)
	m.lower(t)
	if _, _, _, disk := m.visitOf(t, r); disk != 3 {
		t.Fatalf("%d tokens are read from disk", disk)
	}
	if got := m.Costs().Transfer[plan.Disk]; got == guess || got.Entry/guess.Entry/(got.Token/guess.Token) < .999 {
		t.Errorf("after a read the costs are %+v, as estimated %+v", got, guess)
	}
	for range 20 {
		m.loads.disk.note(time.Now().Add(-time.Second), guess.Entry, false)
	}
	if got := m.Costs().Transfer[plan.Disk]; got.Entry < 50*guess.Entry {
		t.Errorf("after reads that did not end, an entry costs %v ms", got.Entry)
	}
	if err := m.Settle(); err != nil {
		t.Error(err)
	}
}

// Copies from the host's memory to the device's are measured. They make KV in the host's memory dearer or cheaper than
// estimated, until there have been none for a while. KV that is on the device already is no copy.
func TestCopiesFromTheHostAreMeasured(t *testing.T) {
	m := newMachine(t, 7, []int32{1, 2}, "", true)
	host, err := pool.Over(m.opt.Pool.Memory().Host(), 64<<20, 4096)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		m.close()
		if err := host.Close(); err != nil {
			t.Error(err)
		}
	}()
	if err := m.store.SetHost(host); err != nil {
		t.Fatal(err)
	}
	guess := m.costs.Transfer[plan.Host]
	for _, policy := range []schedule.Policy{schedule.User, schedule.Item} {
		m.loads.host = drift{start: time.Now()}
		r := &Request{UserID: "u", User: []int32{11, 12, 13}, Items: [][]int32{{21, 22}}, Policy: policy}
		m.visitOf(t, r)
		if _, _, device, _ := m.visitOf(t, r); device == 0 || m.Costs().Transfer[plan.Host] != guess {
			t.Errorf("%v: %d tokens were on the device, and KV of the host costs %+v, estimated %+v", policy, device,
				m.Costs().Transfer[plan.Host], guess)
		}
		m.lower(t)
		if _, sources, device, _ := m.visitOf(t, r); device != 0 || sources[1] != "host" {
			t.Fatalf("%v: %d tokens are on the device, sources %q", policy, device, sources)
		}
		if got := m.Costs().Transfer[plan.Host]; got == guess || got.Token <= 0 || got.Entry != 0 {
			t.Errorf("%v: after a copy KV of the host costs %+v, estimated %+v", policy, got, guess)
		}
	}
	for range 20 {
		m.loads.host.note(time.Now().Add(-time.Second), guess.Token, true)
	}
	if got := m.Costs().Transfer[plan.Host]; got.Token < 50*guess.Token {
		t.Errorf("after slow copies a token costs %v ms, estimated %v", got.Token, guess.Token)
	}
}

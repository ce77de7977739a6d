package catalog

import (
	"bytes"
	"context"
	"encoding/hex"
	"errors"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/cockroachdb/pebble/v2"
	"google.golang.org/protobuf/proto"

	grebev1 "grebe/api/grebe/v1"
	"grebe/internal/wire"
)

// hook is a cluster as one node sees it.
type hook struct {
	term    uint64
	commits func(Mark) error
	leader  *Catalog // that Forward reaches
}

func (h *hook) Term() (uint64, error) {
	if h.term == 0 {
		return 0, ErrNotLeader
	}
	return h.term, nil
}

func (h *hook) Commit(m Mark) error {
	if h.commits == nil {
		return nil
	}
	return h.commits(m)
}

func (h *hook) Seen(context.Context, uint64) {}

func (h *hook) Forward(ctx context.Context, request []byte, _ bool) ([]byte, error) {
	if h.leader == nil {
		return nil, ErrUnavailable
	}
	return h.leader.Serve(ctx, request)
}

// replica opens a replicated catalog; term 0: it does not lead.
func replica(t *testing.T, opt Options, term uint64) (*Catalog, *hook, string) {
	t.Helper()
	dir := filepath.Join(t.TempDir(), "catalog")
	opt.Replicated, opt.TrackDeletions = true, true
	c := open(t, dir, opt)
	h := &hook{term: term}
	c.Attach(h)
	return c, h, dir
}

// dump returns a catalog's files as pairs, with its version.
func dump(t *testing.T, c *Catalog) string {
	t.Helper()
	s, err := c.Snapshot(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	all := fmt.Appendf(nil, "%s %v %d\n", s.ID, s.Last, s.Version)
	for {
		pairs, err := s.Next(100)
		if err != nil {
			t.Fatal(err)
		}
		if pairs == nil {
			return string(all)
		}
		all = append(all, pairs...)
	}
}

// shownAs returns what readers see.
func shownAs(c *Catalog) string {
	s := c.Stats()
	out := fmt.Sprint(s.Items, s.Users, s.Version, s.Digest, "\n")
	for _, e := range slices.Collect(c.All()) {
		out += fmt.Sprint(e.Version, Message(e.Item), "\n")
	}
	users := c.Users(1 << 20)
	slices.SortFunc(users, func(a, b *grebev1.User) int { return bytes.Compare([]byte(a.Id), []byte(b.Id)) })
	for _, u := range users {
		out += fmt.Sprint(c.users[u.Id].version, u, "\n")
	}
	return out
}

// copyTo brings a snapshot of one catalog to another.
func copyTo(t *testing.T, from, to *Catalog) error {
	t.Helper()
	s, err := from.Snapshot(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	return to.Replace(t.Context(), s.Head, func() ([]byte, error) { return s.Next(300) })
}

// pull brings the records that a follower lacks, and shows them.
func pull(t *testing.T, from, to *Catalog) {
	t.Helper()
	for {
		state, _ := to.LogState()
		records, err := from.Records(state.Last.Index+1, 2000)
		if err != nil {
			t.Fatal(err)
		}
		if len(records) == 0 {
			break
		}
		if err := to.Extend(t.Context(), records); err != nil {
			t.Fatal(err)
		}
	}
	state, _ := from.LogState()
	if err := to.Show(t.Context(), state.Shown); err != nil {
		t.Fatal(err)
	}
}

// change makes a random change.
func change(c *Catalog, r *rand.Rand) error {
	item, user := fmt.Sprint("i", r.IntN(20)), fmt.Sprint("u", r.IntN(10))
	switch r.IntN(8) {
	case 0:
		_, err := c.DeleteItem(item)
		return err
	case 1:
		_, err := c.DeleteUser(user)
		return err
	case 2:
		_, err := c.PutUser(&grebev1.User{Id: user, History: []string{item, fmt.Sprint(r.IntN(1000))}})
		return err
	case 3, 4:
		_, _, _, err := c.AppendEvents(user, []*grebev1.Event{
			{Item: item, Time: int64(r.IntN(100)), Id: fmt.Sprint(r.IntN(500))}})
		return err
	case 5:
		_, err := c.EndImport(item)
		return err
	}
	text := fmt.Sprint(r.IntN(1000))
	ops := []Op{{PutItem: &grebev1.Item{Id: item, Text: &text}}, {PutUser: &grebev1.User{Id: user, Text: &item}}}
	for _, res := range c.ApplyImport("import", ops) {
		if res.Err != nil {
			return res.Err
		}
	}
	return nil
}

// A follower that applies the leader's records, also across restarts, has the same files, shows the same and tells its
// subscribers the same.
func TestFollowersHaveWhatTheLeaderHas(t *testing.T) {
	var told [2][]Change
	opt := func(i int) Options {
		return Options{MaxHistory: 30, SweepDelay: time.Hour, OnChange: func(c Change) { told[i] = append(told[i], c) }}
	}
	leader, _, _ := replica(t, opt(0), 7)
	follower, _, dir := replica(t, opt(1), 0)
	if err := copyTo(t, leader, follower); err != nil {
		t.Fatal(err)
	}
	r := rand.New(rand.NewPCG(1, 2))
	for i := range 600 {
		if err := change(leader, r); err != nil {
			t.Fatal(err)
		}
		if i%7 == 0 {
			pull(t, leader, follower)
			if a, b := shownAs(leader), shownAs(follower); a != b {
				t.Fatalf("after %d changes the leader shows\n%s\nand the follower\n%s", i, a, b)
			}
		}
		if i%100 == 99 {
			pull(t, leader, follower)
			shut(t, follower)
			o := opt(1)
			o.Replicated, o.TrackDeletions = true, true
			follower = open(t, dir, o)
		}
	}
	pull(t, leader, follower)
	if a, b := dump(t, leader), dump(t, follower); a != b {
		t.Error("the files differ")
	}
	if !slices.EqualFunc(told[0], told[1], func(a, b Change) bool {
		return a.ID == b.ID && a.Version == b.Version && a.Import == b.Import && a.Ended == b.Ended &&
			reflect.DeepEqual(a.OldItem, b.OldItem) && reflect.DeepEqual(a.NewItem, b.NewItem) &&
			proto.Equal(a.OldUser, b.OldUser) && proto.Equal(a.NewUser, b.NewUser)
	}) {
		t.Errorf("subscribers hear %d changes of the leader and %d of the follower, or others", len(told[0]), len(told[1]))
	}
	mine, theirs := leader.PendingDeletions(), follower.PendingDeletions()
	slices.Sort(mine)
	slices.Sort(theirs)
	if len(mine) == 0 || !slices.Equal(mine, theirs) {
		t.Errorf("deletions %v are pending at the leader, %v at the follower", mine, theirs)
	}
	shut(t, leader)
	shut(t, follower)
}

// All nodes of a cluster remember items that were deleted, by records and by copies, until they are put again.
func TestBuriedItems(t *testing.T) {
	leader, _, _ := replica(t, Options{}, 7)
	follower, _, dir := replica(t, Options{}, 0)
	if err := copyTo(t, leader, follower); err != nil {
		t.Fatal(err)
	}
	for _, op := range []Op{{PutItem: &grebev1.Item{Id: "a"}}, {PutItem: &grebev1.Item{Id: "b"}},
		{PutUser: &grebev1.User{Id: "a"}},
		{DeleteItem: "a"}, {DeleteItem: "b"}, {PutItem: &grebev1.Item{Id: "b"}}, {DeleteItem: "nothing"}} {
		if r := leader.Apply([]Op{op})[0]; r.Err != nil {
			t.Fatal(r.Err)
		}
	}
	pull(t, leader, follower)
	shut(t, follower)
	follower = open(t, dir, Options{Replicated: true})
	joined, _, _ := replica(t, Options{}, 0)
	if err := copyTo(t, leader, joined); err != nil {
		t.Fatal(err)
	}
	for name, c := range map[string]*Catalog{"the leader": leader, "a follower": follower, "a copy": joined} {
		for id, want := range map[string]bool{"a": true, "b": false, "nothing": false} {
			if got, err := c.BuriedItem(id); got != want || err != nil {
				t.Errorf("%s: item %s is deleted: %v, %v; want %v", name, id, got, err, want)
			}
		}
		if got, err := c.Buried("a"); got || err != nil {
			t.Errorf("%s: the user with the id of a deleted item is deleted: %v, %v", name, got, err)
		}
	}
	shut(t, leader)
	shut(t, follower)
	shut(t, joined)
}

// Readers see a record when it is committed, and not before.
func TestUncommittedRecordsAreNotShown(t *testing.T) {
	leader, h, dir := replica(t, Options{}, 3)
	var shown bool
	h.commits = func(m Mark) error {
		_, shown = leader.Item("a")
		state, _ := leader.LogState()
		if m != (Mark{3, 1}) || state.Last != m || state.Shown != 0 {
			t.Errorf("commit %v with %+v", m, state)
		}
		return errors.New("the term is over")
	}
	if _, err := leader.PutItem(&grebev1.Item{Id: "a"}); !errors.Is(err, ErrUncertain) || shown {
		t.Errorf("an uncommitted put: %v, shown early: %v", err, shown)
	}
	h.commits = nil
	if _, ok := leader.Item("a"); ok || leader.Stats().Version != 0 {
		t.Error("readers see it")
	}
	if _, err := leader.PutItem(&grebev1.Item{Id: "b"}); !errors.Is(err, ErrUnavailable) {
		t.Errorf("the next put: %v", err)
	}
	if err := leader.Show(t.Context(), 1); err != nil {
		t.Fatal(err)
	}
	if _, ok := leader.Item("a"); !ok || leader.Stats().Version != 1 {
		t.Error("readers do not see it after it is committed")
	}
	if _, err := leader.PutItem(&grebev1.Item{Id: "b"}); err != nil {
		t.Error(err)
	}
	shut(t, leader)
	alone := open(t, dir, Options{})
	if _, err := alone.PutItem(&grebev1.Item{Id: "c"}); !errors.Is(err, ErrMember) {
		t.Errorf("a write from outside the cluster: %v", err)
	}
	if _, ok := alone.Item("b"); !ok {
		t.Error("the files cannot be read from outside the cluster")
	}
	shut(t, alone)
}

// A follower refuses records of an earlier term, also after a restart, and records behind a gap.
func TestRecordsThatDoNotFollow(t *testing.T) {
	c, _, dir := replica(t, Options{}, 0)
	if m, err := c.BeginTerm(t.Context(), 5); err != nil || m != (Mark{5, 1}) {
		t.Fatal(m, err)
	}
	shut(t, c)
	c = open(t, dir, Options{Replicated: true})
	for _, m := range []Mark{{4, 2}, {5, 1}, {5, 3}} {
		if err := c.Extend(t.Context(), []Record{{Mark: m}}); !errors.Is(err, ErrGap) {
			t.Errorf("%v: %v", m, err)
		}
	}
	if _, err := c.BeginTerm(t.Context(), 5); !errors.Is(err, ErrGap) {
		t.Errorf("a term that was there: %v", err)
	}
	if err := c.Extend(t.Context(), []Record{{Mark: Mark{5, 2}, Data: []byte{9, 9}}}); err == nil {
		t.Error("a malformed record is taken")
	}
	if err := c.Extend(t.Context(), []Record{{Mark: Mark{5, 2}}, {Mark: Mark{6, 3}}}); err != nil {
		t.Error(err)
	}
	for m, want := range map[Mark]bool{{5, 1}: true, {5, 2}: true, {6, 3}: true, {5, 3}: false, {6, 4}: false,
		{0, 0}: false} {
		if got, err := c.Holds(m); got != want || err != nil {
			t.Errorf("holds %v: %v, %v", m, got, err)
		}
	}
	shut(t, c)
}

// A copy replaces everything, also an uncommitted tail. Subscribers hear the differences. One that is cut off leaves a
// mark.
func TestCopies(t *testing.T) {
	leader, _, _ := replica(t, Options{}, 1)
	var told []Change
	opt := Options{Replicated: true, TrackDeletions: true, OnChange: func(c Change) { told = append(told, c) }}
	follower, h, dir := replica(t, opt, 0)
	r := rand.New(rand.NewPCG(3, 4))
	for range 100 {
		if err := change(leader, r); err != nil {
			t.Fatal(err)
		}
	}
	if err := copyTo(t, leader, follower); err != nil {
		t.Fatal(err)
	}
	if a, b := dump(t, leader), dump(t, follower); a != b || shownAs(leader) != shownAs(follower) {
		t.Fatal("the copy differs")
	}
	for _, id := range []string{"gone", "stays"} {
		if _, err := leader.PutUser(&grebev1.User{Id: id}); err != nil {
			t.Fatal(err)
		}
	}
	pull(t, leader, follower)
	h.term, h.commits = 2, func(Mark) error { return errors.New("no") }
	if _, err := follower.PutItem(&grebev1.Item{Id: "tail"}); !errors.Is(err, ErrUncertain) {
		t.Fatal(err)
	}
	h.term = 0
	if _, err := leader.DeleteUser("gone"); err != nil {
		t.Fatal(err)
	}
	if _, err := leader.PutItem(&grebev1.Item{Id: "new"}); err != nil {
		t.Fatal(err)
	}
	told = nil
	cut := errors.New("cut off")
	s, err := leader.Snapshot(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	err = follower.Replace(t.Context(), s.Head, func() ([]byte, error) {
		if n++; n == 3 {
			return nil, cut
		}
		return s.Next(300)
	})
	s.Close()
	state, _ := follower.LogState()
	if !errors.Is(err, cut) || !state.Incomplete || len(told) > 0 {
		t.Errorf("cut off: %v, incomplete %v, %d changes told", err, state.Incomplete, len(told))
	}
	if err := follower.Extend(t.Context(), []Record{{Mark: Mark{9, state.Last.Index + 1}}}); !errors.Is(err, ErrGap) {
		t.Errorf("a record for an incomplete copy: %v", err)
	}
	shut(t, follower)
	if c, err := Open(dir, Options{}); err == nil {
		t.Error("an incomplete copy opens without a cluster")
		shut(t, c)
	}
	follower = open(t, dir, opt)
	if state, _ := follower.LogState(); !state.Incomplete {
		t.Error("after a restart the copy counts as complete")
	}
	told = nil
	if err := copyTo(t, leader, follower); err != nil {
		t.Fatal(err)
	}
	if a, b := dump(t, leader), dump(t, follower); a != b || shownAs(leader) != shownAs(follower) {
		t.Fatal("the second copy differs")
	}
	if _, ok := follower.Item("tail"); ok {
		t.Error("the uncommitted tail is shown")
	}
	if follower.PendingDeletion("gone") == 0 || follower.PendingDeletion("stays") != 0 {
		t.Error("the user who was deleted meanwhile is not pending")
	}
	last := uint64(0)
	for _, ch := range told {
		if ch.Version < last {
			t.Errorf("version %d after %d", ch.Version, last)
		}
		last = ch.Version
	}
	shut(t, leader)
	shut(t, follower)
	follower = open(t, dir, opt)
	if state, _ := follower.LogState(); state.Incomplete || follower.PendingDeletion("gone") == 0 {
		t.Errorf("after a restart: %+v", state)
	}
	shut(t, follower)
}

// The log keeps a bounded number of bytes. A snapshot that is being sent holds the records behind it.
func TestLogsAreBounded(t *testing.T) {
	c, _, dir := replica(t, Options{LogBytes: 10_000}, 1)
	put := func(n int) {
		for i := range n {
			if _, err := c.PutItem(&grebev1.Item{Id: fmt.Sprint(i), Text: proto.String(fmt.Sprint(rand.Uint64()))}); err != nil {
				t.Fatal(err)
			}
		}
	}
	put(300)
	if n := len(c.log.sizes); n < 10 || n > 10_000/leastSize+1 {
		t.Errorf("%d records are kept", n)
	}
	if _, err := c.Records(1, 100); !errors.Is(err, ErrGap) {
		t.Errorf("the first record: %v", err)
	}
	s, err := c.Snapshot(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	put(100)
	if records, err := c.Records(s.Last.Index+1, 1<<20); err != nil || len(records) != 100 {
		t.Errorf("%d records behind the snapshot, %v", len(records), err)
	}
	if ok, err := c.Holds(s.Last); !ok || err != nil {
		t.Errorf("the snapshot's place is not held: %v", err)
	}
	s.Close()
	put(1)
	shut(t, c)
	c = open(t, dir, Options{Replicated: true, LogBytes: 10_000})
	if n := len(c.log.sizes); n < 10 || n > 10_000/leastSize+1 {
		t.Errorf("after a restart %d records are kept", n)
	}
	it, err := c.store.db.NewIter(&pebble.IterOptions{LowerBound: []byte{recordKind}, UpperBound: []byte{recordKind + 1}})
	if err != nil {
		t.Fatal(err)
	}
	n := 0
	for ok := it.First(); ok; ok = it.Next() {
		n++
	}
	if err := it.Close(); err != nil || n != len(c.log.sizes) {
		t.Errorf("%d records on disk, %v", n, err)
	}
	shut(t, c)
}

// The log does not keep the bytes of what was deleted.
func TestDeletedBytesLeaveTheLog(t *testing.T) {
	c, _, dir := replica(t, Options{SweepDelay: time.Millisecond}, 1)
	r := rand.New(rand.NewPCG(5, 6))
	secret := func() string {
		return hex.EncodeToString(binaryOf(r.Uint64(), r.Uint64(), r.Uint64()))
	}
	id, text, unknown := secret(), secret(), secret()
	if _, err := c.PutUser(&grebev1.User{Id: id, Text: &text}); err != nil {
		t.Fatal(err)
	}
	if len(holds(t, dir, []byte(text))) == 0 {
		t.Fatal("the search does not find what is there")
	}
	held, err := c.Snapshot(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, user := range []string{id, unknown} {
		if _, err := c.DeleteUser(user); err != nil {
			t.Fatal(err)
		}
		c.DeletionDone(user, c.PendingDeletion(user))
	}
	time.Sleep(50 * time.Millisecond)
	if marked, err := c.store.has(sweepKey); err != nil || !marked {
		t.Errorf("the sweep ended while a snapshot held the log: %v", err)
	}
	held.Close()
	waitSwept(t, c)
	needles := [][]byte{[]byte(id), []byte(text), []byte(unknown)}
	for began := time.Now(); len(holds(t, dir, needles...)) > 0; time.Sleep(10 * time.Millisecond) {
		if time.Since(began) > 10*time.Second {
			t.Fatalf("the bytes are still in %v", holds(t, dir, needles...))
		}
	}
	if ok, err := c.Holds(Mark{1, 3}); !ok || err != nil {
		t.Errorf("the log does not go on behind the deletions: %v", err)
	}
	shut(t, c)
}

func binaryOf(numbers ...uint64) (out []byte) {
	for _, n := range numbers {
		out = fmt.Appendf(out, "%016x", n)
	}
	return out
}

// A write at a follower is carried out by the leader, with the same results and errors.
func TestWritesAtFollowers(t *testing.T) {
	leader, _, _ := replica(t, Options{MaxItems: 2}, 1)
	follower, h, _ := replica(t, Options{MaxItems: 2}, 0)
	if err := copyTo(t, leader, follower); err != nil {
		t.Fatal(err)
	}
	if _, err := follower.PutItem(&grebev1.Item{Id: "a"}); !errors.Is(err, ErrUnavailable) {
		t.Errorf("without a leader: %v", err)
	}
	h.leader = leader
	stop := make(chan struct{})
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			pull(t, leader, follower)
			select {
			case <-stop:
				return
			case <-time.After(time.Millisecond):
			}
		}
	}()
	res := follower.Apply([]Op{
		{PutItem: &grebev1.Item{Id: "a"}}, {PutItem: &grebev1.Item{Id: ""}}, {PutItem: &grebev1.Item{Id: "b"}},
		{PutItem: &grebev1.Item{Id: "a"}}, {PutItem: &grebev1.Item{Id: "c"}}, {DeleteItem: "b"},
	})
	var field *wire.Error
	if !res[0].Created || !errors.As(res[1].Err, &field) || field.Field != "id" || !res[2].Created || res[3].Changed ||
		!errors.Is(res[4].Err, ErrFull) || !res[5].Changed {
		t.Errorf("results %+v", res)
	}
	if _, ok := follower.Item("a"); !ok {
		t.Error("the follower does not see its own write")
	}
	events := []*grebev1.Event{{Item: "a", Id: "1"}, {Item: "a", Id: "1"}}
	u, created, _, err := follower.AppendEvents("u", events)
	if err != nil || !created || u.Duplicates != 1 || len(u.Events) != 1 || u.Version != 4 {
		t.Errorf("appended: %+v, created %v, %v", u, created, err)
	}
	if v, err := follower.EndImport("x"); v != 5 || err != nil {
		t.Errorf("version %d, %v", v, err)
	}
	gone, err := follower.DeleteUser("nobody")
	if gone || err != nil || follower.PendingDeletion("nobody") == 0 || leader.PendingDeletion("nobody") == 0 {
		t.Errorf("a user whom the catalog does not have: %v, %v", gone, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := follower.ApplyWithin(ctx, "", []Op{{DeleteItem: "a"}})[0].Err; !errors.Is(err, context.Canceled) {
		t.Errorf("a canceled write: %v", err)
	}
	close(stop)
	<-done
	if dump(t, leader) != dump(t, follower) {
		t.Error("they differ")
	}
	for _, bad := range [][]byte{nil, {0}, {0, 99}, {1}, {0, byte(putItem), 0, 0, 1, 9}} {
		if _, err := leader.Serve(t.Context(), bad); err == nil {
			t.Errorf("request %v passes", bad)
		}
	}
	shut(t, leader)
	shut(t, follower)
}

// Only writes that may be made twice are repeated.
func TestRepeatableWrites(t *testing.T) {
	with := eventsRecord([]*grebev1.Event{{Item: "a", Id: "1"}, {Item: "a", Id: "2"}})
	without := eventsRecord([]*grebev1.Event{{Item: "a", Id: "1"}, {Item: "a"}})
	for want, muts := range map[bool][]mutation{
		true:  {{verb: putItem}, {verb: deleteUser}, {verb: appendEvents, record: with}},
		false: {{verb: putItem}, {verb: appendEvents, record: without}},
	} {
		if got := (&writer{muts: muts}).repeatable(); got != want {
			t.Errorf("%v, want %v", got, want)
		}
	}
}

// Repair makes a member that lost entries or records forget its place in the log. The next snapshot brings all back.
func TestRepairOfAMember(t *testing.T) {
	for what, key := range map[string][]byte{"record": recordKey(5), "item": slicesOf(keyOf(false, "1"))} {
		leader, _, _ := replica(t, Options{}, 1)
		for i := range 3 {
			if _, err := leader.PutItem(&grebev1.Item{Id: fmt.Sprint(i)}); err != nil {
				t.Fatal(err)
			}
		}
		follower, _, dir := replica(t, Options{}, 0)
		if err := copyTo(t, leader, follower); err != nil {
			t.Fatal(err)
		}
		for i := range 3 {
			if _, err := leader.PutItem(&grebev1.Item{Id: fmt.Sprint(i), Tokens: []int32{1}}); err != nil {
				t.Fatal(err)
			}
		}
		pull(t, leader, follower)
		shut(t, follower)
		damaged := []byte{9}
		if what == "record" {
			damaged = nil
		}
		rewrite(t, dir, key, damaged)
		if c, err := Open(dir, Options{Replicated: true}); err == nil {
			t.Errorf("%s: it opens", what)
			shut(t, c)
		}
		if problems, err := Examine(dir); len(problems) != 1 || err != nil {
			t.Errorf("%s: problems %v, %v", what, problems, err)
		}
		if loss, err := Repair(dir); loss == nil || err != nil {
			t.Errorf("%s: lost %v, %v", what, loss, err)
		}
		follower = open(t, dir, Options{Replicated: true})
		if state, _ := follower.LogState(); state.Last != (Mark{}) || state.Version != 6 {
			t.Errorf("%s: after the repair %+v", what, state)
		}
		if err := copyTo(t, leader, follower); err != nil {
			t.Fatal(err)
		}
		if dump(t, leader) != dump(t, follower) {
			t.Errorf("%s: the copy differs", what)
		}
		shut(t, leader)
		shut(t, follower)
	}
}

// A large write becomes several records.
func TestLargeWritesAreDivided(t *testing.T) {
	c, _, _ := replica(t, Options{}, 1)
	text := string(bytes.Repeat([]byte("0123456789abcdef"), maxRequest/48)) // two fit, three do not
	var ops []Op
	for i := range 7 {
		ops = append(ops, Op{PutItem: &grebev1.Item{Id: fmt.Sprint(i), Text: &text}})
	}
	ops[4] = Op{PutItem: &grebev1.Item{}}
	for i, r := range c.Apply(ops) {
		if (r.Err != nil) != (i == 4) || r.Created != (i != 4) {
			t.Errorf("%d: %+v", i, r)
		}
	}
	state, _ := c.LogState()
	if state.Last.Index != 3 || c.Stats().Items != 6 {
		t.Errorf("%d records, %d items", state.Last.Index, c.Stats().Items)
	}
	shut(t, c)
}

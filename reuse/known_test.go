package reuse

import (
	"path/filepath"
	"reflect"
	"slices"
	"testing"
	"time"

	"grebe/blend"
	"grebe/engine"
	"grebe/plan"
	"grebe/schedule"
)

// The input of a decision is the request, its cached part and the waiting work.
func TestDecisionsAreMadeFromWhatIsKnown(t *testing.T) {
	m := newMachine(t, 7, nil, "", false).led(t, []int32{1, 2}, []int32{4, 5, 6})
	now := time.Duration(0)
	m.opt.Now = func() time.Duration { return now }
	m.opt.Orders = schedule.Of(plan.UserFirst, plan.ItemFirst)
	user, items := []int32{11, 12, 13, 14}, [][]int32{{21, 22, 23}, {31}, {41, 42}}
	m.rank(t, &Request{UserID: "u", User: user[:3], Items: items[:1], Policy: schedule.User})
	m.rank(t, &Request{UserID: "v", User: user[:1], Items: items[1:2], Policy: schedule.Item})
	m.opt.Load = waiting{}
	r := &Request{UserID: "u", User: user, Items: items, Pointwise: true, Policy: schedule.None, Slack: time.Second / 4}
	v := m.Begin(r)
	in := v.in
	if in.Frequency != 1 || in.Returns <= 0 {
		t.Errorf("a user who came once came %v times and is expected back %v times", in.Frequency, in.Returns)
	}
	in.Frequency, in.Returns, in.Coldest = 0, 0, 0
	want := schedule.Request{
		Preamble: 2, LeadIn: 3, SharedCached: true, Question: 1, PerItem: true, Orders: m.opt.Orders, User: 4,
		Items: []int32{3, 1, 2}, ItemTier: []plan.Tier{plan.Missing, plan.Host, plan.Missing},
		ItemFrequency: []float32{1, 0, 0}, ReturnsKnown: true, UserRoom: true, Queue: 1, Slack: 250,
	}
	want.UserCached[plan.Host] = 3
	if !reflect.DeepEqual(in, want) {
		t.Errorf("%+v\nwant %+v", in, want)
	}
}

// A user on disk counts with the tokens that are there, unless memory has as many.
func TestAUserOnDiskIsKnown(t *testing.T) {
	m := newMachine(t, 7, nil, t.TempDir(), false)
	m.opt.Load = linear{}
	user := []int32{11, 12, 13, 14, 15, 16}
	m.visitOf(t, &Request{UserID: "u", User: user[:4], Items: [][]int32{{5}}, Policy: schedule.User})
	cached := func(id string, tokens []int32) [plan.NumTiers]int32 {
		v := m.Begin(&Request{UserID: id, User: tokens, Items: [][]int32{{5}}, Policy: schedule.None})
		return v.in.UserCached
	}
	at := func(tier plan.Tier, n int32) (out [plan.NumTiers]int32) { out[tier] = n; return out }
	if got := cached("u", user); got != at(plan.Host, 4) {
		t.Errorf("in memory: %v", got)
	}
	m.lower(t)
	if got := cached("u", user); got != at(plan.Disk, 4) {
		t.Errorf("on disk: %v", got)
	}
	v := m.Begin(&Request{UserID: "u", User: user, Items: [][]int32{{5}}, Policy: schedule.User})
	if v.hit || v.Decision.Order != plan.UserFirst {
		t.Errorf("what lies on disk is a hit: %v", v.hit)
	}
	if got := cached("u", user[:2]); got != at(plan.Disk, 2) {
		t.Errorf("of a shorter history on disk: %v", got)
	}
	if got := cached("", user); got[plan.Disk] != 0 {
		t.Errorf("of nobody on disk: %v", got)
	}
	// leaves all of them as a known prefix
	m.visitOf(t, &Request{User: user, Items: [][]int32{{5}}, Policy: schedule.User})
	if got := cached("u", user); got != at(plan.Host, 6) {
		t.Errorf("with a longer prefix in memory: %v", got)
	}
}

// Blocks replace the items of a prompt in its order. Each is moved from its computed position to its place.
func TestBlocksAreMovedToTheirPlaces(t *testing.T) {
	user, items := []int32{11, 12, 13}, [][]int32{{21, 22, 23}, {}, {31, 32}, {21, 22, 23}, {41}}
	for _, preamble := range [][]int32{nil, {1, 2}} {
		for _, leadIn := range [][]int32{nil, {4, 5, 6}} {
			for _, itemsFirst := range []bool{false, true} {
				m := newMachine(t, 7, nil, "", false).led(t, preamble, leadIn)
				m.rank(t, &Request{User: []int32{9}, Items: [][]int32{items[0], items[2]}, Policy: schedule.Item})
				how := &Blend{Layers: 1, ItemsFirst: itemsFirst, Drift: 0.5, Budget: blend.Budget{Items: .25}}
				v := m.BeginBlend(&Request{UserID: "u", User: user, Items: items})
				l, err := m.prompt.Rank(how.Order(), user, items)
				if err != nil {
					t.Fatal(err)
				}
				job := &engine.Job{Plan: l.Plan}
				v.Attach(t.Context(), &l, job, how, how.Budget)
				b := job.Blend
				if b.Budget != how.Budget || b.Drift != how.Drift || b.Layers != 1 || b.Load != nil || b.Beside != 0 {
					t.Errorf("blended as %+v", *b)
				}
				var cached []int
				for _, part := range b.Parts {
					i := slices.Index(l.ItemAt, part.At)
					for i >= 0 && len(items[i]) == 0 { // an empty item begins where the next one does
						i++
					}
					if i < 0 || part.Segment != l.Items || part.Tokens != len(items[i]) || part.Entry.Len() != part.Tokens {
						t.Fatalf("part %+v is no item's", part)
					}
					cached = append(cached, i)
					position := l.Plan.Segments[l.Items].Start + part.At
					if from := len(preamble) + len(leadIn); part.Turn != position-from || part.Source != plan.Block {
						t.Errorf("a block is moved by %d, from %d to %d", part.Turn, from, position)
					}
				}
				if !slices.Equal(cached, []int{0, 2, 3}) {
					t.Errorf("items %v have blocks, want 0, 2 and 3", cached)
				}
				v.End(&l, nil)
			}
		}
	}
}

// Find with from finds prototypes only for the last tokens of a history.
func TestPrototypesOfLastTokens(t *testing.T) {
	m := newMachine(t, 7, []int32{1, 2, 3}, "", false)
	file := filepath.Join(t.TempDir(), "x.proto")
	built := m.build(t, file, few(1))
	p, err := m.OpenPrototypes(file)
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	if p.Len() != built.Prototypes || built.Bytes != m.Bytes(built.Prototypes) {
		t.Errorf("%d prototypes, built %+v", p.Len(), *built)
	}
	tokens, _ := few(1).History(0)
	var found Matches
	for _, from := range []int{0, len(tokens) / 2, len(tokens)} {
		p.Find(&found, tokens, from, 3, 0)
		parts, sum := found.Append(nil, 4), 0
		for i, part := range parts {
			sum += part.Tokens
			if part.At < from || part.Segment != 4 || len(part.Drift) != part.Tokens || part.Source != plan.Prototype {
				t.Errorf("from %d: part %d is %+v", from, i, part)
			}
			if i == 0 {
				continue
			}
			p := &parts[i-1]
			if p.At+p.Tokens == part.At && p.Entry == part.Entry && p.First+p.Tokens == part.First && p.Turn == part.Turn {
				t.Errorf("from %d: parts %+v and %+v are one", from, *p, part)
			}
		}
		if sum != found.Tokens() || (sum == 0) != (from == len(tokens)) {
			t.Errorf("from %d: %d tokens in parts, %d found", from, sum, found.Tokens())
		}
		if found.Release(); found.Tokens() != 0 || len(found.Append(nil, 4)) != 0 {
			t.Errorf("%d tokens are found after all were released", found.Tokens())
		}
	}
}

// After a cache is settled, blocks on disk are computed and not read.
func TestBlocksOnDiskAfterSettle(t *testing.T) {
	for _, settled := range []bool{false, true} {
		m := newMachine(t, 7, nil, t.TempDir(), false)
		m.opt.Load = linear{}
		items := [][]int32{{21, 22, 23}, {31, 32}}
		m.visitOf(t, &Request{User: []int32{9}, Items: items, Policy: schedule.Item})
		m.lower(t)
		if settled {
			if err := m.Settle(); err != nil {
				t.Fatal(err)
			}
		}
		res, a, _, _ := m.blended(t, &Request{User: []int32{11, 12}, Items: items}, &Blend{Layers: 1})
		if want := map[bool]int{true: 0, false: 5}[settled]; a.Disk != want || res.Late != 5-want {
			t.Errorf("settled %v: %+v, %d tokens late", settled, a, res.Late)
		}
		if err := m.Settle(); err != nil {
			t.Error(err)
		}
	}
}

// The first cache over a store knows the entries that its disk has from before.
func TestAnEarlierDiskIsKnown(t *testing.T) {
	folder := t.TempDir()
	items := [][]int32{{21, 22}, {31}}
	before := newMachine(t, 7, nil, folder, false)
	before.opt.Load = linear{}
	before.visitOf(t, &Request{UserID: "u", User: []int32{11, 12}, Items: items, Policy: schedule.Item})
	before.store.Flush()
	before.close()
	m := newMachine(t, 7, nil, folder, false)
	for _, it := range items {
		if _, there := m.Heat(it); !there {
			t.Errorf("%v is on disk, and nobody knows", it)
		}
	}
	if m.Known() != 2 {
		t.Errorf("%d entries are known, want two items", m.Known())
	}
}

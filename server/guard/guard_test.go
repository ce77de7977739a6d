package guard

import (
	"errors"
	"math"
	"strings"
	"sync"
	"testing"
	"time"
)

var t0 = time.Unix(1_700_000_000, 0)

func newGuard(t *testing.T, keys ...Key) *Guard {
	t.Helper()
	g, err := New(keys)
	if err != nil {
		t.Fatal(err)
	}
	return g
}

func TestWithoutKeysEveryoneIsLetIn(t *testing.T) {
	g := newGuard(t)
	if name, err := g.Check("", Admin, t0); err != nil || name != "" || !g.Open() {
		t.Errorf("no keys: got name %q, error %v, open %v; want everyone let in", name, err, g.Open())
	}
}

func TestRoles(t *testing.T) {
	shop, shopDigest := NewKey()
	boss, bossDigest := NewKey()
	g := newGuard(t, Key{Name: "shop", SHA256: shopDigest, Roles: []Role{Serve}},
		Key{Name: "boss", SHA256: bossDigest, Roles: []Role{Admin}})
	for _, c := range []struct {
		key  string
		role Role
		want error
	}{
		{shop, Serve, nil}, {boss, Serve, nil}, {boss, Catalog, nil}, {boss, Admin, nil},
		{"", Serve, ErrMissing}, {shop + "x", Serve, ErrUnknown}, {shopDigest, Serve, ErrUnknown},
	} {
		if _, err := g.Check(c.key, c.role, t0); !errors.Is(err, c.want) {
			t.Errorf("key %.12s… as %s: got %v, want %v", c.key, c.role, err, c.want)
		}
	}
	var denied *DeniedError
	if _, err := g.Check(shop, Catalog, t0); !errors.As(err, &denied) || denied.Name != "shop" {
		t.Errorf("a serve key changes the catalog: got %v, want it denied", err)
	}
}

// What an error or a stored digest says must not be the key.
func TestErrorsNeverHoldTheKey(t *testing.T) {
	key, digest := NewKey()
	g := newGuard(t, Key{Name: "a", SHA256: digest, Roles: []Role{Serve}, Rate: 1})
	for _, role := range []Role{Admin, Serve, Serve} {
		if _, err := g.Check(key, role, t0); err != nil && strings.Contains(err.Error(), key) {
			t.Errorf("the error %q holds the key", err)
		}
	}
	if strings.Contains(digest, key) || len(digest) != 64 {
		t.Errorf("digest %q: want 64 hexadecimal digits that are not the key", digest)
	}
}

func TestRate(t *testing.T) {
	key, digest := NewKey()
	g := newGuard(t, Key{Name: "a", SHA256: digest, Roles: []Role{Serve}, Rate: 10, Burst: 3})
	at := func(d time.Duration) error { _, err := g.Check(key, Serve, t0.Add(d)); return err }
	for i := range 3 {
		if err := at(0); err != nil {
			t.Fatalf("request %d of a burst of 3: %v", i, err)
		}
	}
	var limit *LimitError
	if err := at(0); !errors.As(err, &limit) || limit.After != 100*time.Millisecond {
		t.Fatalf("fourth request at once: got %v, want a limit with 100 ms to wait", err)
	}
	if err := at(99 * time.Millisecond); err == nil {
		t.Error("1 ms too early, and let in")
	}
	if err := at(100 * time.Millisecond); err != nil {
		t.Errorf("after the wait: %v", err)
	}
	if err := at(50 * time.Millisecond); err == nil {
		t.Error("a clock that went back gave a request away")
	}
	let := 0
	for i := range 1000 { // one every 10 ms for 10 s, at 10 a second
		if at(time.Second+time.Duration(i)*10*time.Millisecond) == nil {
			let++
		}
	}
	if let < 100 || let > 104 {
		t.Errorf("10 s at 10 a second let %d in, want 100 to 104", let)
	}
}

// A rate so small that the wait has no place in a Duration is a limit all the same.
func TestSmallRate(t *testing.T) {
	key, digest := NewKey()
	g := newGuard(t, Key{Name: "a", SHA256: digest, Roles: []Role{Serve}, Rate: 1e-12, Burst: 1})
	for i := range 3 {
		if _, err := g.Check(key, Serve, t0.Add(time.Duration(i)*time.Hour)); (err == nil) != (i == 0) {
			t.Fatalf("request %d of one in 30,000 years: %v", i, err)
		}
	}
}

func TestReplaceKeepsWhatWasSpent(t *testing.T) {
	key, digest := NewKey()
	k := Key{Name: "a", SHA256: digest, Roles: []Role{Serve}, Rate: 1, Burst: 2}
	g := newGuard(t, k)
	for range 2 {
		if _, err := g.Check(key, Serve, t0); err != nil {
			t.Fatal(err)
		}
	}
	if err := g.Replace([]Key{k}); err != nil {
		t.Fatal(err)
	}
	if _, err := g.Check(key, Serve, t0); err == nil {
		t.Error("reading the keys again filled the bucket: a client could be let in twice as often")
	}
	if err := g.Replace([]Key{{Name: "b"}}); err == nil {
		t.Error("a key without a digest was taken")
	}
	if _, err := g.Check(key, Serve, t0.Add(time.Minute)); err != nil {
		t.Errorf("after a refused change the old keys must stay: %v", err)
	}
}

func TestBadKeys(t *testing.T) {
	_, d := NewKey()
	_, d2 := NewKey()
	for name, keys := range map[string][]Key{
		"no name":     {{SHA256: d, Roles: []Role{Serve}}},
		"no role":     {{Name: "a", SHA256: d}},
		"wrong role":  {{Name: "a", SHA256: d, Roles: []Role{"root"}}},
		"short":       {{Name: "a", SHA256: d[:62], Roles: []Role{Serve}}},
		"burst alone": {{Name: "a", SHA256: d, Roles: []Role{Serve}, Burst: 3}},
		"no number":   {{Name: "a", SHA256: d, Roles: []Role{Serve}, Rate: math.NaN()}},
		"same name":   {{Name: "a", SHA256: d, Roles: []Role{Serve}}, {Name: "a", SHA256: d2, Roles: []Role{Serve}}},
		"same key":    {{Name: "a", SHA256: d, Roles: []Role{Serve}}, {Name: "b", SHA256: d, Roles: []Role{Serve}}},
		"too many":    make([]Key, MaxKeys+1),
	} {
		if _, err := New(keys); err == nil {
			t.Errorf("%s: taken", name)
		}
	}
}

func TestBearer(t *testing.T) {
	for header, want := range map[string]string{"Bearer abc": "abc", "bearer  abc ": "abc", "Basic abc": "", "abc": "",
		"": ""} {
		if got := Bearer(header); got != want {
			t.Errorf("Bearer(%q) = %q, want %q", header, got, want)
		}
	}
}

func TestConcurrentChecksLetExactlyTheBurstIn(t *testing.T) {
	key, digest := NewKey()
	g := newGuard(t, Key{Name: "a", SHA256: digest, Roles: []Role{Serve}, Rate: 1, Burst: 100})
	var wg sync.WaitGroup
	var mu sync.Mutex
	let := 0
	for range 8 {
		wg.Go(func() {
			for range 50 {
				if _, err := g.Check(key, Serve, t0); err == nil {
					mu.Lock()
					let++
					mu.Unlock()
				}
			}
		})
	}
	wg.Wait()
	if let != 100 {
		t.Errorf("400 requests at one moment with a burst of 100 let %d in", let)
	}
}

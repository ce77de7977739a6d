package catalog

import (
	"fmt"
	"runtime"
	"slices"
	"strings"
	"testing"

	grebev1 "grebe/api/grebe/v1"
)

func TestSomeIDs(t *testing.T) {
	c := New(Options{})
	for i := range 100 {
		text := "x"
		if _, err := c.PutItem(&grebev1.Item{Id: fmt.Sprintf("i%02d", i), Text: &text}); err != nil {
			t.Fatal(err)
		}
	}
	for _, w := range []struct {
		prefix string
		limit  int
		want   []string
		more   bool
	}{
		{"i1", 3, []string{"i10", "i11", "i12"}, true},
		{"i99", 3, []string{"i99"}, false},
		{"j", 3, nil, false},
		{"i9", 10, []string{"i90", "i91", "i92", "i93", "i94", "i95", "i96", "i97", "i98", "i99"}, false},
	} {
		if got, more := c.ItemIDs(w.prefix, w.limit, false); !slices.Equal(got, w.want) || more != w.more {
			t.Errorf("%q, %d: got %v, %v, want %v, %v", w.prefix, w.limit, got, more, w.want, w.more)
		}
	}
	got, more := c.ItemIDs("", 20, true)
	if len(got) != 20 || !more || !slices.IsSorted(got) {
		t.Errorf("any 20: got %v, %v", got, more)
	}
	if users, more := c.UserIDs("", 5, true); len(users) != 0 || more {
		t.Errorf("no users, got %v", users)
	}
}

// Every reader of the maps of items and users waits for a writer, so that no map is read while it changes.
func TestReadersWaitForWriters(t *testing.T) {
	c := New(Options{})
	if _, err := c.PutUser(&grebev1.User{Id: "u"}); err != nil {
		t.Fatal(err)
	}
	for name, read := range map[string]func(){
		"Items":   func() { c.Items() },
		"All":     func() { _ = slices.Collect(c.All()) },
		"ItemIDs": func() { c.ItemIDs("", 5, false) },
		"UserIDs": func() { c.UserIDs("", 5, false) },
		"Search":  func() { c.Search("x", 5) },
		"Lookup":  func() { c.Lookup("i") },
		"User":    func() { c.User("u") },
		"Resolve": func() { c.Resolve(&grebev1.User{History: []string{"i"}}) },
		"Stats":   func() { c.Stats() },
	} {
		c.mu.Lock()
		done := make(chan struct{})
		go func() {
			defer close(done)
			read()
		}()
		for waits := false; !waits; {
			select {
			case <-done:
				t.Errorf("%s reads while a writer has the lock", name)
				waits = true
			default:
				waits = inRLock()
				runtime.Gosched()
			}
		}
		c.mu.Unlock()
		<-done
	}
}

// inRLock reports whether a goroutine of TestReadersWaitForWriters is taking a lock for reading.
func inRLock() bool {
	buf := make([]byte, 1<<20)
	for stack := range strings.SplitSeq(string(buf[:runtime.Stack(buf, true)]), "\n\n") {
		if strings.Contains(stack, "created by grebe/catalog.TestReadersWaitForWriters") &&
			strings.Contains(stack, "sync.(*RWMutex).RLock(") {
			return true
		}
	}
	return false
}

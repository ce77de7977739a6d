package catalog

import (
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	grebev1 "grebe/api/grebe/v1"
)

// What is remembered of decoded items stays within its bytes, and within what the records leave of the memory.
func TestRecentItemsAreBounded(t *testing.T) {
	for _, opt := range []Options{{}, {MaxMemory: 40 << 20}} {
		c := New(opt)
		r := rand.New(rand.NewPCG(1, 1))
		const items = 3000
		for i := range items {
			text := strings.Repeat("x", r.IntN(16_000)+r.IntN(2)*r.IntN(2)*r.IntN(40_000))
			if _, err := c.PutItem(&grebev1.Item{Id: fmt.Sprint("i", i), Text: &text}); err != nil {
				t.Fatal(err)
			}
		}
		room := min(recentBytes, c.opt.MaxMemory-c.Stats().Memory)
		most := int64(0)
		for range 3 * items {
			id := fmt.Sprint("i", r.IntN(items))
			it, ok := c.Item(id)
			if again, _ := c.Item(id); !ok || it.ID != id || again.ID != id || again.Text != it.Text {
				t.Fatalf("%s: got %v, %v", id, it, ok)
			}
			most = max(most, c.recent.bytes.Load())
		}
		sum := int64(0)
		for i := range c.recent.slots {
			if d := c.recent.slots[i].Load(); d != nil {
				sum += d.bytes
			}
		}
		if sum != c.recent.bytes.Load() || most > room || most < room/4 {
			t.Errorf("%d bytes are remembered, counted as %d, at most %d: want at most %d", sum, c.recent.bytes.Load(), most,
				room)
		}
	}
}

// An item that was read is not decoded again, unless there is no memory left for that.
func TestRecentItemsAreKept(t *testing.T) {
	c := New(Options{})
	text := strings.Repeat("x", 900_000)
	if _, err := c.PutItem(&grebev1.Item{Id: "long", Text: &text}); err != nil {
		t.Fatal(err)
	}
	first, _ := c.Item("long")
	if again, _ := c.Item("long"); again != first {
		t.Error("a long item was decoded twice")
	}
	full := New(Options{MaxMemory: c.Stats().Memory})
	if _, err := full.PutItem(&grebev1.Item{Id: "long", Text: &text}); err != nil {
		t.Fatal(err)
	}
	first, _ = full.Item("long")
	if again, _ := full.Item("long"); again == first {
		t.Error("an item is remembered beyond the memory that the catalog may take")
	}
	history := strings.Split(strings.Repeat("long ", fewNames)+"long", " ")
	u, _ := full.Resolve(&grebev1.User{History: history})
	for _, it := range u.History {
		if it != u.History[0] {
			t.Fatal("a history that names an item many times has it in memory many times")
		}
	}
}

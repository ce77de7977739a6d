package catalog

import (
	"errors"
	"strings"
	"testing"

	grebev1 "grebe/api/grebe/v1"
)

// A user who does not fit is refused with an error, by a put and by events, and leaves nothing behind: not in memory,
// not in the statistics and not on disk.
func TestRefusedUsersLeaveNothing(t *testing.T) {
	const there = 1000 // time of the event that the user has
	events := func(n int, item string, from int64) (out []*grebev1.Event) {
		for i := range int64(n) {
			out = append(out, &grebev1.Event{Item: item, Time: from + i})
		}
		return out
	}
	long, text := strings.Repeat("x", 400), strings.Repeat("x", 1200)
	for _, w := range []struct {
		name  string
		opt   Options
		write func(c *Catalog) error
	}{
		{"put a new user", Options{MaxUsers: 1}, func(c *Catalog) error {
			_, err := c.PutUser(&grebev1.User{Id: "b", Events: events(5, "i", 1)})
			return err
		}},
		{"events of a new user", Options{MaxUsers: 1, MaxHistory: 3}, func(c *Catalog) error {
			_, created, dropped, err := c.AppendEvents("b", events(5, "i", 1))
			if created || dropped != 0 {
				t.Errorf("a refused user: created %v, %d events dropped", created, dropped)
			}
			return err
		}},
		{"put a larger user", Options{MaxMemory: 1000}, func(c *Catalog) error {
			_, err := c.PutUser(&grebev1.User{Id: "a", Text: &text})
			return err
		}},
		{"more events", Options{MaxMemory: 1000}, func(c *Catalog) error {
			_, _, _, err := c.AppendEvents("a", events(3, long, there+1))
			return err
		}},
		{"late events", Options{MaxMemory: 1000}, func(c *Catalog) error {
			_, _, _, err := c.AppendEvents("a", events(3, long, 1))
			return err
		}},
	} {
		t.Run(w.name, func(t *testing.T) {
			dir := t.TempDir()
			c := open(t, dir, w.opt)
			if _, err := c.PutUser(&grebev1.User{Id: "a", Events: events(1, "i", there)}); err != nil {
				t.Fatal(err)
			}
			before := c.Stats()
			check := func(when string) {
				t.Helper()
				if u, ok := c.User("a"); !ok || len(u.Events) != 1 || u.Text != nil {
					t.Errorf("%s: the user who was there is %v", when, u)
				}
				if u, ok := c.User("b"); ok {
					t.Errorf("%s: the refused user is there: %v", when, u)
				}
			}
			if err := w.write(c); !errors.Is(err, ErrFull) {
				t.Errorf("error %v, want %v", err, ErrFull)
			}
			check("at once")
			if after := c.Stats(); after != before {
				t.Errorf("statistics %+v, before %+v", after, before)
			}
			shut(t, c)
			c = open(t, dir, Options{})
			check("after a restart")
			shut(t, c)
		})
	}
}

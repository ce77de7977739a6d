package coordtest

import (
	"testing"
	"testing/synctest"
	"time"

	"grebe/cluster/coord"
)

// memory is the suite's view of a Server.
type memory struct{ *Server }

func (m memory) Open(t testing.TB) (coord.Coordinator, Link) {
	c := m.Server.Open()
	t.Cleanup(func() { _ = c.Close() })
	return c, c
}

func (m memory) Restart(testing.TB) {
	m.Kill()
	time.Sleep(100 * time.Millisecond)
	m.Server.Restart()
}

func (m memory) Compact(testing.TB)    { m.Server.Compact() }
func (m memory) MinTTL() time.Duration { return time.Second }

func TestServer(t *testing.T) {
	for _, c := range Cases() {
		t.Run(c.Name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := NewServer()
				t.Cleanup(s.Close)
				c.Run(t, memory{s})
			})
		})
	}
}

// A server that is stopped for a minute, with all leases gone meanwhile: its clients notice, and all are registered
// again in time.
func TestServerStopped(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := NewServer()
		t.Cleanup(s.Close)
		b := memory{s}
		c, _ := b.Open(t)
		other, _ := b.Open(t)
		v := follow(t, other, "n/")
		announced(t, b, c, "boot1")
		v.shows(time.Second, "n/1=boot1")
		s.Stop()
		eventually(t, 5*time.Second, "the watch reports Lost", func() bool { return v.count(coord.Lost) == 1 })
		time.Sleep(time.Minute)
		if got := v.values(); len(got) != 1 {
			t.Errorf("while the server is stopped the view is %q", got)
		}
		s.Resume()
		eventually(t, 5*time.Second, "it is registered again", func() bool {
			e, err := other.Get(t.Context(), "n/1")
			return err == nil && string(e.Data) == "boot1"
		})
		v.shows(time.Second, "n/1=boot1")
	})
}

package etcd

import (
	"fmt"
	"log/slog"
	"os"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"grebe/cluster/coord"
)

// TestIdle measures what an idle cluster of three costs: each process is announced with a lease of 10 s and has two
// watches. It runs for as long as GREBE_COORD_IDLE says, such as 30s.
func TestIdle(t *testing.T) {
	text := os.Getenv("GREBE_COORD_IDLE")
	if text == "" {
		t.Skip("set GREBE_COORD_IDLE to a span of time")
	}
	span, err := time.ParseDuration(text)
	if err != nil {
		t.Fatal(err)
	}
	c := startChild(t)
	for i := range 3 {
		client := open(t, "/g/", c.addr)
		key := fmt.Sprint("nodes/", i)
		a, err := coord.Announce(client, key, 10*time.Second, []byte(key), slog.New(slog.DiscardHandler))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = a.Close() })
		for _, prefix := range []string{"nodes/", "placement/"} {
			go func() {
				for range client.Watch(t.Context(), prefix) {
				}
			}()
		}
	}
	time.Sleep(2 * time.Second)
	server, clients := cpu(t, c.cmd.Process.Pid), own(t)
	time.Sleep(span)
	server, clients = cpu(t, c.cmd.Process.Pid)-server, own(t)-clients
	t.Logf("in %v etcd took %v of CPU time (%.2f %% of a core), three clients %v (%.2f %%)", span,
		server, 100*server.Seconds()/span.Seconds(), clients, 100*clients.Seconds()/span.Seconds())
}

// own returns the CPU time of this process.
func own(t testing.TB) time.Duration {
	var u syscall.Rusage
	if err := syscall.Getrusage(syscall.RUSAGE_SELF, &u); err != nil {
		t.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// cpu returns the CPU time of a process, in steps of 10 ms.
func cpu(t testing.TB, pid int) time.Duration {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		t.Fatal(err)
	}
	_, rest, _ := strings.Cut(string(stat), ") ")
	fields := strings.Fields(rest)
	user, _ := strconv.Atoi(fields[11])
	system, _ := strconv.Atoi(fields[12])
	return time.Duration(user+system) * 10 * time.Millisecond
}

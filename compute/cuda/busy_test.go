package cuda

import (
	"strings"
	"testing"
	"time"

	"grebe/compute"
)

// TestBusyTimeIsAUnion: time in which several runners have work counts once.
func TestBusyTimeIsAUnion(t *testing.T) {
	var b busyTime
	at := func(s int) time.Time { return time.Unix(int64(s), 0) }
	b.begin(at(10))
	b.begin(at(12))
	b.end(at(13))
	if got := b.sum(at(14)); got != 4*time.Second {
		t.Errorf("%v while one runner works, want 4s", got)
	}
	b.end(at(15))
	b.begin(at(20))
	b.end(at(21))
	if got := b.sum(at(30)); got != 6*time.Second {
		t.Errorf("%v, want 6s", got)
	}
}

// TestBusyEndsWithABatch: nothing counts after a batch, whether it was answered, failed or was given up.
func TestBusyEndsWithABatch(t *testing.T) {
	g, d := simulate(t, Options{})
	x := newTried(t, d)
	defer x.free()
	defer x.r.Close()
	rests := func(after string) {
		t.Helper()
		if d.busy.count != 0 {
			t.Errorf("after %s %d runners have work", after, d.busy.count)
		}
	}
	for _, task := range tasks() {
		if err := task.run(x); err != nil {
			t.Fatal(err)
		}
		rests(task.name)
	}
	if d.Busy() == 0 {
		t.Error("the GPU had no work")
	}
	g.Fail = func(call string) int32 {
		if strings.HasPrefix(call, "cuLaunch") || strings.HasPrefix(call, "cuGraphLaunch") {
			return 701 // too many resources: the GPU is not lost
		}
		return 0
	}
	if err := tasks()[0].run(x); err == nil {
		t.Error("a batch whose launches failed was answered")
	}
	rests("a failure")
	g.Fail = nil
	if err := x.r.Begin(&compute.Batch{}); err != nil {
		t.Fatal(err)
	}
	rests("a batch that was given up")
}

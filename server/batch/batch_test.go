package batch

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

const id = "abcdefghijklmnop"

func upper(_ context.Context, op string, line []byte) ([]byte, error) {
	return fmt.Appendf(nil, "%s %s", op, strings.ToUpper(string(line))), nil
}

func open(t *testing.T, opt Options) *Jobs {
	t.Helper()
	b, err := Open(opt)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func requests(n int) func(add func([]byte) error) error {
	return func(add func([]byte) error) error {
		for i := range n {
			if err := add(fmt.Appendf(nil, "line %d", i)); err != nil {
				return err
			}
		}
		return nil
	}
}

func want(n int) string {
	var out strings.Builder
	for i := range n {
		fmt.Fprintf(&out, "rank LINE %d\n", i)
	}
	return out.String()
}

// started runs jobs until the result is called.
func started(b *Jobs) (stop func()) {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		b.Run(ctx)
	}()
	return func() {
		cancel()
		<-done
	}
}

func await(t *testing.T, b *Jobs, id, state string) Job {
	t.Helper()
	for end := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		j, err := b.Get(id)
		if err != nil {
			t.Fatal(err)
		}
		if j.State == state {
			return j
		}
		if time.Now().After(end) {
			t.Fatalf("the job is %+v, want state %s", j, state)
		}
	}
}

func results(t *testing.T, b *Jobs, id string) string {
	t.Helper()
	for end := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		r, err := b.Results(id)
		if errors.Is(err, ErrRuns) && time.Now().Before(end) {
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		defer r.Close()
		data, err := io.ReadAll(r)
		if err != nil {
			t.Fatal(err)
		}
		return string(data)
	}
}

// A job that stops after any line, as if its process had been killed, ends with the results of one that does not.
func TestResumed(t *testing.T) {
	const lines = 12
	for stopAfter := range lines {
		dir := t.TempDir()
		var answered atomic.Int64
		stopped := errors.New("stopped")
		b := open(t, Options{Dir: dir, Answer: func(ctx context.Context, op string, line []byte) ([]byte, error) {
			if answered.Add(1) > int64(stopAfter) {
				<-ctx.Done()
				return nil, stopped
			}
			return upper(ctx, op, line)
		}})
		stop := started(b)
		if _, err := b.Add(id, "rank", requests(lines)); err != nil {
			t.Fatal(err)
		}
		for answered.Load() <= int64(stopAfter) {
			time.Sleep(time.Millisecond)
		}
		stop()
		if _, err := b.Results(id); !errors.Is(err, ErrRuns) {
			t.Errorf("results of a job that has not ended: %v", err)
		}
		again := open(t, Options{Dir: dir, Answer: func(ctx context.Context, op string, line []byte) ([]byte, error) {
			answered.Add(1)
			return upper(ctx, op, line)
		}})
		stop = started(again)
		if j := await(t, again, id, Done); j.Done != lines || j.Lines != lines {
			t.Errorf("it ends as %+v", j)
		}
		if got := results(t, again, id); got != want(lines) {
			t.Errorf("stopped after %d lines the results are\n%s", stopAfter, got)
		}
		stop()
		if n := answered.Load(); n != lines+1 {
			t.Errorf("stopped after %d lines: %d requests were answered, want %d", stopAfter, n, lines+1)
		}
	}
}

// A job that is canceled keeps its results so far, and the next one runs. A call that is repeated adds nothing.
func TestCancel(t *testing.T) {
	reached := make(chan struct{})
	dir := t.TempDir()
	b := open(t, Options{Dir: dir, Answer: func(ctx context.Context, op string, line []byte) ([]byte, error) {
		if string(line) == "line 2" && op == "rank" {
			close(reached)
			<-ctx.Done()
			return nil, ctx.Err()
		}
		return upper(ctx, op, line)
	}})
	stop := started(b)
	defer stop()
	for range 2 {
		if _, err := b.Add(id, "rank", requests(5)); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := b.Add(id+"2", "other", requests(1)); err != nil {
		t.Fatal(err)
	}
	<-reached
	if j, err := b.Cancel(id); err != nil || j.State != Canceled {
		t.Errorf("canceled: %+v, %v", j, err)
	}
	await(t, b, id+"2", Done)
	if got := results(t, b, id); got != want(2) {
		t.Errorf("the canceled job has %q", got)
	}
	if j, err := open(t, Options{Dir: dir}).Get(id); err != nil || j.State != Canceled {
		t.Errorf("after a restart: %+v, %v", j, err)
	}
	if _, err := b.Cancel("none"); !errors.Is(err, ErrNone) {
		t.Errorf("cancel an unknown job: %v", err)
	}
}

// Jobs and their requests are bounded. Old jobs that have ended go.
func TestLimits(t *testing.T) {
	b := open(t, Options{Dir: t.TempDir(), MaxJobs: 2, MaxKept: 3, MaxBytes: 30, Answer: upper})
	if _, err := b.Add(id, "rank", requests(5)); !errors.Is(err, ErrLarge) {
		t.Errorf("35 bytes: %v", err)
	}
	if _, err := b.Add("../escape-this-dir", "rank", requests(1)); err == nil {
		t.Error("an id with a slash is taken")
	}
	for i := range 2 {
		if _, err := b.Add(fmt.Sprint(id, i), "rank", requests(1)); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := b.Add(id+"x", "rank", requests(1)); !errors.Is(err, ErrFull) {
		t.Errorf("a third job: %v", err)
	}
	stop := started(b)
	defer stop()
	for i := range 6 {
		if _, err := b.Add(fmt.Sprint(id, i), "rank", requests(1)); err != nil {
			t.Fatal(err)
		}
		await(t, b, fmt.Sprint(id, i), Done)
	}
	if _, err := b.Get(id + "0"); !errors.Is(err, ErrNone) {
		t.Errorf("the oldest job is kept: %v", err)
	}
	if j, err := b.Get(id + "5"); err != nil || j.State != Done {
		t.Errorf("the newest: %+v, %v", j, err)
	}
}

// Run ends with its context while it waits for a job.
func TestRunEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := open(t, Options{Dir: t.TempDir(), Answer: upper})
		stop := started(b)
		synctest.Wait()
		stop()
	})
}

// Two calls with one id do not write the same requests: the second is refused while the first one lasts.
func TestOneIDTwice(t *testing.T) {
	b := open(t, Options{Dir: t.TempDir()})
	const id = "0123456789abcdef"
	first, err := b.Add(id, "rank", func(add func([]byte) error) error {
		if _, err := b.Add(id, "rank", requests(7)); !errors.Is(err, ErrComing) {
			t.Errorf("the second call: %v", err)
		}
		return requests(3)(add)
	})
	if err != nil || first.Lines != 3 {
		t.Fatalf("%+v, %v", first, err)
	}
	if again, err := b.Add(id, "rank", requests(7)); err != nil || again != first {
		t.Errorf("a repeated call: %+v, %v; want %+v", again, err, first)
	}
}

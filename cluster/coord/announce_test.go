package coord

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"
)

// away is a coordinator that grants no leases.
type away struct{ Coordinator }

func (away) Grant(context.Context, time.Duration) (Lease, error) { return nil, ErrUnavailable }

// While the coordinator is away, the log has one line a minute.
func TestAnAbsentCoordinatorDoesNotFloodTheLog(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var log bytes.Buffer
		a, err := Announce(away{}, "k", time.Second, []byte("v"), slog.New(slog.NewTextHandler(&log, nil)))
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(150 * time.Second)
		if err := a.Close(); err != nil {
			t.Error(err)
		}
		if n := strings.Count(log.String(), "announcing this process again"); n != 3 {
			t.Errorf("%d lines in 2.5 minutes, want 3:\n%s", n, log.String())
		}
	})
}

// A failure after a success is logged at once.
func TestANewFailureIsLogged(t *testing.T) {
	var b Backoff
	if !b.Tell() || b.Tell() {
		t.Error("want the first failure to be logged, and not the second")
	}
	if b.Reset(); !b.Tell() {
		t.Error("want a failure after a success to be logged")
	}
}

package catalog

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
	"time"
)

// What a store in trouble says again and again is told once in a while, with how often it was not.
func TestTroubleDoesNotFloodTheLog(t *testing.T) {
	var out bytes.Buffer
	l := newLogger(slog.New(slog.NewTextHandler(&out, nil)))
	var now time.Duration
	l.now = func() time.Duration { return now }
	for range 1000 {
		l.Errorf("no room for %s", "000119.sst")
		now += logPause / 499
	}
	if n := strings.Count(out.String(), "000119.sst"); n != 2 && n != 3 {
		t.Errorf("told %d times in a little more than two pauses:\n%s", n, out.String())
	}
	if !strings.Contains(out.String(), "left_out=0") || !strings.Contains(out.String(), "left_out=499") {
		t.Errorf("how much was left out is not told:\n%s", out.String())
	}
}

func textLogger(w *strings.Builder) *slog.Logger { return slog.New(slog.NewTextHandler(w, nil)) }

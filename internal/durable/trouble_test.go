package durable

import (
	"bytes"
	"errors"
	"log/slog"
	"strings"
	"testing"
)

// A thousand errors are one line, and their end another. What begins anew is logged anew.
func TestTroubleIsLoggedOnce(t *testing.T) {
	var log bytes.Buffer
	trouble := NewTrouble(slog.New(slog.NewTextHandler(&log, nil)), "nothing can be written")
	full := errors.New("no room")
	if err := trouble.Note(nil); err != nil || log.Len() > 0 || trouble.Failing() != nil {
		t.Errorf("in order: %v, %s", err, &log)
	}
	for range 1000 {
		if err := trouble.Note(full, "model", "m"); !errors.Is(err, full) || !errors.Is(trouble.Failing(), full) {
			t.Fatalf("%v, %v", err, trouble.Failing())
		}
	}
	if s := log.String(); strings.Count(s, "\n") != 1 || !strings.Contains(s, "level=ERROR") ||
		!strings.Contains(s, `model=m error="no room"`) {
		t.Errorf("logged:\n%s", s)
	}
	for range 2 {
		trouble.Note(nil)
	}
	if s := log.String(); strings.Count(s, "\n") != 2 || !strings.Contains(s, "errors_not_logged=999") ||
		trouble.Failing() != nil {
		t.Errorf("logged:\n%s", s)
	}
	if trouble.Note(full); strings.Count(log.String(), "level=ERROR") != 2 {
		t.Errorf("logged:\n%s", &log)
	}
}

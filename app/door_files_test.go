package app

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"testing"
	"testing/synctest"
	"time"

	"grebe/internal/config"
)

// Files of keys and certificates that are replaced are read again without a signal. Those that do not fit together yet,
// because a certificate is new and its key is not, are tried again.
func TestReplacedFilesAreRead(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		t.Helper()
		file := filepath.Join(dir, name)
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		return file
	}
	first := config.Default()
	first.Cluster.TLS.Cert, first.Cluster.TLS.Key = write("cert", "1"), write("key", "1")
	first.Auth.Keys = write("keys", "1")
	synctest.Test(t, func(t *testing.T) {
		a := &App{log: slog.New(slog.DiscardHandler)}
		hangup := make(chan os.Signal)
		reads, applied, refused := 0, 0, error(nil)
		var last *config.Config
		again := func() (*config.Config, error) {
			reads++
			next := *first
			last = &next
			return last, nil
		}
		stop := a.followHangups(hangup, first, again, func(_, _ *config.Config) error {
			if refused == nil {
				applied++
			}
			return refused
		})
		look := func(what string, wantReads, wantApplied int) {
			t.Helper()
			time.Sleep(lookEvery)
			synctest.Wait()
			if reads != wantReads || applied != wantApplied {
				t.Errorf("%s: read %d times and applied %d times, want %d and %d", what, reads, applied, wantReads, wantApplied)
			}
		}
		time.Sleep(time.Second) // looks are between those of the test
		look("nothing changed", 0, 0)
		write("cert", "2")
		refused = errors.New("the key is another one's")
		look("half of a pair", 1, 0)
		look("still half of it", 2, 0)
		write("key", "2")
		refused = nil
		look("the pair", 3, 1)
		look("nothing changed since", 3, 1)
		write("keys", "2")
		look("keys", 4, 2)
		hangup <- os.Interrupt
		synctest.Wait()
		look("a signal, and nothing changed", 5, 3)
		if got := stop(); got != last {
			t.Error("the configuration in force is not the last one that was applied")
		}
	})
}

// A process waits to know its cluster before it is ready, but not for ever: the coordinator may be away.
func TestMeet(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		a := &App{log: slog.New(slog.DiscardHandler)}
		never := func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() }
		began := time.Now()
		if err := a.meet(t.Context(), time.Second, never); err != nil || time.Since(began) != time.Second {
			t.Errorf("without a coordinator: %v after %v, want to go on after 1 s", err, time.Since(began))
		}
		if err := a.meet(t.Context(), time.Second, func(context.Context) error { return nil }); err != nil {
			t.Error(err)
		}
		stopped, stop := context.WithCancel(t.Context())
		stop()
		if err := a.meet(stopped, time.Second, never); !errors.Is(err, context.Canceled) {
			t.Errorf("a process that is stopped: %v", err)
		}
	})
}

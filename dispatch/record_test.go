package dispatch

import (
	"context"
	"errors"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"grebe/internal/record"
	"grebe/internal/scripttest"
	"grebe/schedule"
)

// A dispatcher records its inputs and decisions line by line. testdata/record.log has the record of these few requests.
func TestWhatIsRecorded(t *testing.T) {
	var out strings.Builder
	synctest.Test(t, func(t *testing.T) {
		log := record.New(&out, 1<<20)
		m := schedule.PrefillModel{Fixed: 1, Row: 1, Quality: schedule.Quality{
			Largest: schedule.Sample{Rows: 100, Keys: 5050, Requests: 1}}}
		d, err := New([]Engine{&clockworkDisk{}}, Options{SLO: time.Second, Queue: 1, Model: m, Record: log.Room("dispatch")})
		if err != nil {
			t.Fatal(err)
		}
		if err := request(t.Context(), d, time.Now().Add(time.Second), 20, 1); err != nil {
			t.Fatal(err)
		}
		d.SetSLO(2 * time.Second)
		if err := within(t, d, 50*ms, 100); err != nil { // tried, because the engine is cold
			t.Fatal(err)
		}
		busy := background(t, d, job(100))
		if _, err := d.Admit(Rounds, 3, time.Now().Add(ms)); !errors.Is(err, ErrShed) {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		left := make(chan error)
		go func() { _, err := d.Do(ctx, job(10)); left <- err }()
		synctest.Wait()
		if _, err := d.Do(t.Context(), job(1)); !errors.Is(err, ErrQueueFull) {
			t.Fatal(err)
		}
		cancel()
		<-left
		if err := <-busy; err != nil {
			t.Fatal(err)
		}
		pace := known(ms)
		for _, read := range []time.Duration{10 * ms, time.Second} { // the job waits for the first, and skips the second
			j := blended(t, 40, pace, read, read)
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			if _, err := d.Do(ctx, j); err != nil {
				t.Fatal(err)
			}
			cancel()
			if err := reads(j).Wait(t.Context()); err != nil {
				t.Fatal(err)
			}
			pace = known(time.Second / 10)
		}
		d.Close()
		if err := log.Close(); err != nil {
			t.Error(err)
		}
	})
	const file = "testdata/record.log"
	got := plainLines(out.String())
	if scripttest.Rewriting() {
		if err := os.WriteFile(file, []byte(strings.Join(got, "\n")+"\n"), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(strings.TrimSuffix(string(want), "\n"), "\n")
	for _, l := range lines {
		if !slices.Contains(got, l) {
			t.Errorf("not recorded: %s", l)
		}
	}
	for _, l := range got {
		if !slices.Contains(lines, l) {
			t.Errorf("recorded: %s", l)
		}
	}
	if len(got) != len(lines) && !t.Failed() {
		t.Errorf("%d lines, want %d", len(got), len(lines))
	}
}

// plainLines returns the lines of a log sorted by their texts, with numbers of six digits. Events at the same moment
// may be in any order. An engine without work may look for it once more; these looks are left out.
func plainLines(log string) (out []string) {
	all := strings.Split(strings.TrimSpace(log), "\n")
	for i, l := range all {
		idle := ". run [] [] "
		if strings.Contains(l, idle) || i+1 < len(all) && strings.Contains(all[i+1], idle) {
			continue
		}
		words := strings.Fields(l)
		for j, w := range words {
			if f, err := strconv.ParseFloat(w, 64); err == nil && strings.Contains(w, ".") {
				words[j] = strconv.FormatFloat(f, 'g', 6, 64)
			}
		}
		out = append(out, strings.Join(words, " "))
	}
	slices.Sort(out)
	return out
}

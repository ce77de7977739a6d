package ingest

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"grebe/internal/cli"
	"grebe/internal/human"

	"golang.org/x/term"
)

// progressBar shows the progress of an import: a bar on a terminal, else a line every few seconds.
type progressBar struct {
	out      io.Writer
	terminal bool
	name     string
	total    int64 // bytes
	from     int64 // bytes that were read before the first new record
	begun    bool
	unit     string
	start    time.Time
	drawn    time.Time
	first    int64 // lines done in earlier runs
	state    *importState
	shown    bool // a bar is on the screen
}

func newProgressBar(w *cli.World, src *source, s *importState) *progressBar {
	f, ok := w.Stderr.(*os.File)
	now := time.Now()
	return &progressBar{out: w.Stderr, terminal: ok && term.IsTerminal(int(f.Fd())), name: filepath.Base(src.path),
		total: max(src.size, 1), first: s.Line, unit: src.unit, state: s, start: now, drawn: now}
}

func (b *progressBar) update() {
	s := b.state
	if !b.begun { // records of earlier runs are passed over quickly
		b.begun, b.from, b.start = true, s.read, time.Now()
	}
	every := 5 * time.Second
	if b.terminal {
		every = 100 * time.Millisecond
	}
	if time.Since(b.drawn) < every {
		return
	}
	b.drawn = time.Now()
	share := min(float64(s.read)/float64(b.total), 1)
	left := "?"
	if done := s.read - b.from; done > 0 {
		left = (time.Duration(float64(time.Since(b.start))*float64(max(b.total-s.read, 0))/float64(done)) +
			time.Second).Truncate(time.Second).String()
	}
	text := fmt.Sprintf("%3.0f %%  %s of %s  %s  %s left", 100*share, human.Bytes(s.read), human.Bytes(b.total), b.rate(),
		left)
	if !b.terminal {
		fmt.Fprintf(b.out, "%s: %s\n", b.name, text)
		return
	}
	const width = 24
	full := min(width, int(share*width))
	fmt.Fprintf(b.out, "\r\x1b[K%s [%s%s] %s", b.name, strings.Repeat("#", full), strings.Repeat(".", width-full), text)
	b.shown = true
}

// rate returns the records per second of this run.
func (b *progressBar) rate() string {
	return fmt.Sprintf("%.0f %ss/s", float64(b.state.Line-b.first)/max(time.Since(b.start).Seconds(), 1e-3), b.unit)
}

// above prints a line above the bar.
func (b *progressBar) above(text string) {
	b.done()
	fmt.Fprintln(b.out, text)
}

// done removes the bar from the screen.
func (b *progressBar) done() {
	if b.shown {
		fmt.Fprint(b.out, "\r\x1b[K")
		b.shown = false
	}
}

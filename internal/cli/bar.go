package cli

import (
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"golang.org/x/term"
)

// RequestBar shows the progress of requests or of another unit: a bar on a terminal, elsewhere a line every ten
// seconds.
type RequestBar struct {
	unit         string
	out          io.Writer
	terminal     bool
	start, drawn time.Time
}

// NewRequestBar returns a bar of requests on w's standard error.
func NewRequestBar(w *World) *RequestBar { return NewBar(w, "requests") }

// NewBar returns a bar of another unit, such as "items".
func NewBar(w *World, unit string) *RequestBar {
	f, ok := w.Stderr.(*os.File)
	now := time.Now()
	return &RequestBar{unit: unit, out: w.Stderr, terminal: ok && term.IsTerminal(int(f.Fd())), start: now, drawn: now}
}

// Update shows that done of total are done.
func (b *RequestBar) Update(done, total int) {
	every := 10 * time.Second
	if b.terminal {
		every = 200 * time.Millisecond
	}
	if time.Since(b.drawn) < every || done < 3 {
		return // too early to estimate the time
	}
	b.drawn = time.Now()
	left := time.Duration(float64(time.Since(b.start)) * float64(total-done) / float64(done)).Round(time.Second)
	text := fmt.Sprintf("%d of %d %s, %s left", done, total, b.unit, left)
	if !b.terminal {
		fmt.Fprintln(b.out, text)
		return
	}
	const width = 30
	fmt.Fprintf(b.out, "\r[%-*s] %s\x1b[K", width, strings.Repeat("#", width*done/max(total, 1)), text)
}

// End removes the bar from the screen.
func (b *RequestBar) End() {
	if b.terminal {
		fmt.Fprint(b.out, "\r\x1b[K")
	}
}

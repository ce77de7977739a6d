package ingest

import (
	"bufio"
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"

	grebev1 "grebe/api/grebe/v1"
	"grebe/catalog"
	"grebe/internal/cli"
)

const (
	maxImportLine = 16 << 20 // bytes of a line
	chunkBytes    = 256 << 10
	headBytes     = 64 << 10 // beginning of a file by which its kind is guessed
)

// source is a file to import.
type source struct {
	path string
	kind string
	why  string // how the kind was determined
	size int64
}

func newSource(path, kind string) (*source, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, cli.Usagef("%s is not a file", path)
	}
	head := make([]byte, headBytes)
	n, err := io.ReadFull(f, head)
	if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
		return nil, err
	}
	s := &source{path: path, kind: kind, why: "as --kind says", size: info.Size()}
	if kind == "" {
		s.kind, s.why = guessKind(filepath.Base(path), head[:n])
	}
	if s.kind == "" {
		return nil, cli.Usagef("%s: items or users? Neither its name nor its first line tells: give --kind", path)
	}
	return s, nil
}

// guessKind guesses what a file holds by its name, or by its first line.
func guessKind(name string, head []byte) (kind, why string) {
	name = strings.ToLower(name)
	items, users := strings.Contains(name, "item"), strings.Contains(name, "user")
	if items != users {
		if items {
			return kindItems, "by its name"
		}
		return kindUsers, "by its name"
	}
	first, _, _ := bytes.Cut(bytes.TrimLeft(head, " \t\r\n"), []byte{'\n'})
	_, notItem := decodeLine(kindItems, first)
	_, notUser := decodeLine(kindUsers, first)
	switch {
	case notItem == nil && notUser != nil:
		return kindItems, "by its first line"
	case notUser == nil && notItem != nil:
		return kindUsers, "by its first line"
	}
	return "", ""
}

// line is a line of a file that is not blank.
type line struct {
	number int64 // from 1
	start  int64 // offset in the file
	text   []byte
	op     catalog.Op
	err    error // why the line is bad; nil if it is not
}

// chunk is a run of lines.
type chunk struct {
	lines   []line
	end     int64 // offset after it
	endLine int64
	digest  string // of all bytes before end
	err     error  // reading failed
}

// bad returns the index of the first bad line, or −1.
func (c *chunk) bad() int {
	for i := range c.lines {
		if c.lines[i].err != nil {
			return i
		}
	}
	return -1
}

// chunks reads a file from a state's offset on, decodes its lines on all cores and returns them in order. The caller
// MUST end ctx and call wait.
func (s *source) chunks(ctx context.Context, from *importState) (out <-chan chan *chunk, wait func(), err error) {
	f, err := os.Open(s.path)
	if err != nil {
		return nil, nil, err
	}
	if _, err := f.Seek(from.Offset, io.SeekStart); err != nil {
		return nil, nil, errors.Join(err, f.Close())
	}
	type task struct {
		part *chunk
		out  chan *chunk
	}
	r := &chunkReader{r: bufio.NewReaderSize(f, 1<<20), sum: from.sum, offset: from.Offset, line: from.Line}
	workers := runtime.GOMAXPROCS(0)
	order, tasks := make(chan chan *chunk, 2*workers), make(chan task)
	var wg sync.WaitGroup
	wg.Go(func() {
		defer f.Close()
		defer close(order)
		defer close(tasks)
		for ctx.Err() == nil {
			part := r.next()
			if part == nil {
				return
			}
			t := task{part, make(chan *chunk, 1)}
			select {
			case order <- t.out:
			case <-ctx.Done():
				return
			}
			select {
			case tasks <- t:
			case <-ctx.Done():
				close(t.out)
				return
			}
		}
	})
	for range workers {
		wg.Go(func() {
			for t := range tasks {
				for i := range t.part.lines {
					if l := &t.part.lines[i]; l.err == nil {
						l.op, l.err = decodeLine(s.kind, l.text)
					}
				}
				t.out <- t.part
			}
		})
	}
	return order, wg.Wait, nil
}

// parts passes the file's lines from a state's offset on to visit, decoded and in order, until visit fails or ctx ends.
func (s *source) parts(ctx context.Context, from *importState, visit func(*chunk) error) error {
	ctx, cancel := context.WithCancel(ctx)
	chunks, wait, err := s.chunks(ctx, from)
	if err != nil {
		cancel()
		return err
	}
	// The reader must end before the file is closed.
	defer wait()
	defer cancel()
	for ch := range chunks {
		part, ok := <-ch
		if !ok {
			break
		}
		if part.err != nil {
			return fmt.Errorf("read %s: %w", s.path, part.err)
		}
		if err := visit(part); err != nil {
			return err
		}
	}
	return ctx.Err()
}

// each visits all lines of the file that are not blank, in order.
func (s *source) each(ctx context.Context, visit func(*line)) error {
	return s.parts(ctx, &importState{sum: sha256.New()}, func(part *chunk) error {
		for i := range part.lines {
			visit(&part.lines[i])
		}
		return nil
	})
}

// EachItem visits the items that a file puts into the catalog, in order. It skips bad lines.
func EachItem(ctx context.Context, file string, visit func(*grebev1.Item)) error {
	src, err := newSource(file, kindItems)
	if err != nil {
		return err
	}
	return src.each(ctx, func(l *line) {
		if l.err == nil && l.op.PutItem != nil {
			visit(l.op.PutItem)
		}
	})
}

// copy writes the file and a final newline to w.
func (s *source) copy(w io.Writer) error {
	f, err := os.Open(s.path)
	if err != nil {
		return err
	}
	defer f.Close()
	if _, err := io.Copy(w, f); err != nil {
		return err
	}
	_, err = io.WriteString(w, "\n")
	return err
}

// chunkReader splits a file into chunks.
type chunkReader struct {
	r      *bufio.Reader
	sum    hash.Hash // of all bytes before offset
	offset int64
	line   int64
	ended  bool
}

// next returns the next chunk, or nil at the end.
func (r *chunkReader) next() *chunk {
	if r.ended {
		return nil
	}
	c := &chunk{}
	for begin := r.offset; r.offset-begin < chunkBytes; {
		start := r.offset
		text, tooLong, err := r.readLine()
		if len(text) > 0 || tooLong || err == nil {
			r.line++
		}
		if len(bytes.TrimSpace(text)) > 0 || tooLong {
			l := line{number: r.line, start: start, text: text}
			if tooLong {
				l.err = fmt.Errorf("longer than %d bytes", maxImportLine)
			}
			c.lines = append(c.lines, l)
		}
		if err != nil {
			r.ended = true
			if !errors.Is(err, io.EOF) {
				c.err = err
			}
			break
		}
	}
	c.end, c.endLine, c.digest = r.offset, r.line, hex.EncodeToString(r.sum.Sum(nil))
	return c
}

// readLine returns a line without its newline, in newly allocated memory.
func (r *chunkReader) readLine() (text []byte, tooLong bool, err error) {
	for {
		piece, err := r.r.ReadSlice('\n')
		r.offset += int64(len(piece))
		r.sum.Write(piece)
		if len(text)+len(piece) > maxImportLine+1 {
			text, tooLong = nil, true
		}
		if !tooLong {
			text = append(text, piece...)
		}
		if !errors.Is(err, bufio.ErrBufferFull) {
			return bytes.TrimSuffix(text, []byte{'\n'}), tooLong, err
		}
	}
}

package ingest

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"hash"
	"io"
)

const (
	maxImportLine = 16 << 20 // bytes of a record
	chunkBytes    = 256 << 10
)

// splitter finds the end of the first record of b, its line break included, and the number of line breaks in it. It
// returns end 0 if the record does not end in b.
type splitter func(b []byte) (end, lines int)

// splitLine ends a record at a line break.
func splitLine(b []byte) (end, lines int) {
	if i := bytes.IndexByte(b, '\n'); i >= 0 {
		return i + 1, 1
	}
	return 0, 0
}

// blockReader splits a stream of bytes into chunks of records.
type blockReader struct {
	r       io.Reader
	split   splitter
	oneLine bool // a record that is too long ends at the next line break
	rest    []byte
	sum     hash.Hash // of all bytes before offset
	offset  int64
	line    int64
	ended   bool
	failed  error
}

func newBlockReader(r io.Reader, split splitter, oneLine bool) *blockReader {
	return &blockReader{r: r, split: split, oneLine: oneLine, sum: sha256.New()}
}

// next returns the next chunk, or nil at the end. The chunk's memory is its own.
func (r *blockReader) next() *chunk {
	if r.failed != nil {
		err := r.failed
		r.failed, r.ended, r.rest = nil, true, nil
		return &chunk{err: err, end: r.offset, endLine: r.line}
	}
	if r.ended && len(r.rest) == 0 {
		return nil
	}
	buf := append(make([]byte, 0, chunkBytes+len(r.rest)), r.rest...)
	buf = r.fill(buf)
	c := &chunk{}
	at := r.take(c, buf)
	for at == 0 && !r.ended && r.failed == nil {
		if len(buf) > maxImportLine {
			return r.tooLong(c, buf)
		}
		buf = r.fill(append(make([]byte, 0, 2*cap(buf)), buf...))
		at = r.take(c, buf)
	}
	if r.ended && at < len(buf) { // the last record has no line break
		r.add(c, buf[at:], 1)
		at = len(buf)
	}
	r.rest = append([]byte(nil), buf[at:]...)
	return r.finish(c)
}

// finish completes a chunk.
func (r *blockReader) finish(c *chunk) *chunk {
	c.end, c.endLine, c.digest = r.offset, r.line, hex.EncodeToString(r.sum.Sum(nil))
	return c
}

// fill reads until buf is full, or the stream ends or fails.
func (r *blockReader) fill(buf []byte) []byte {
	n, err := io.ReadFull(r.r, buf[len(buf):cap(buf)])
	switch {
	case errors.Is(err, errCutOff) || err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF):
		r.failed = err
	case err != nil:
		r.ended = true
	}
	return buf[:len(buf)+n]
}

// take adds the whole records of buf to a chunk and returns where they end.
func (r *blockReader) take(c *chunk, buf []byte) (at int) {
	for at < len(buf) {
		end, lines := r.split(buf[at:])
		if end == 0 {
			break
		}
		r.add(c, buf[at:at+end], lines)
		at += end
	}
	return at
}

// add adds a record to a chunk, unless it is blank.
func (r *blockReader) add(c *chunk, text []byte, lines int) {
	if len(bytes.TrimSpace(text)) > 0 {
		l := line{number: r.line + 1, start: r.offset, text: bytes.TrimRight(text, "\r\n")}
		if len(text) > maxImportLine+1 {
			l.text, l.err = nil, errTooLong
		}
		c.lines = append(c.lines, l)
	}
	r.pass(text, lines)
}

// pass moves past bytes of the stream.
func (r *blockReader) pass(b []byte, lines int) {
	r.sum.Write(b)
	r.offset += int64(len(b))
	r.line += int64(lines)
}

var errTooLong = fmt.Errorf("longer than %d bytes", maxImportLine)

// tooLong passes over a record that is longer than it may be.
func (r *blockReader) tooLong(c *chunk, buf []byte) *chunk {
	if !r.oneLine {
		r.failed = fmt.Errorf("line %d: a record of more than %d bytes: a quote in it is never closed; write a quote "+
			"inside a cell twice",
			r.line+1, maxImportLine)
		return r.next()
	}
	c.lines = append(c.lines, line{number: r.line + 1, start: r.offset, err: errTooLong})
	for !r.ended && r.failed == nil {
		r.pass(buf, 0)
		buf = r.fill(buf[:0])
		if end, lines := r.split(buf); end > 0 {
			r.pass(buf[:end], lines)
			r.rest = append([]byte(nil), buf[end:]...)
			return r.finish(c)
		}
	}
	r.pass(buf, 1)
	r.rest = nil
	return r.finish(c)
}

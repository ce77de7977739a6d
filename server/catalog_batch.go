package server

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"io"
	"net/http"
	"strconv"

	grebev1 "grebe/api/grebe/v1"
	"grebe/catalog"
	"grebe/internal/wire"
)

// Bounds of a batch of lines.
const (
	batchLines  = 512       // that are made durable together
	batchBytes  = 512 << 10 // of such lines
	batchErrors = 100       // that a response tells
)

// postItems changes items by lines. All lines of a request become one version of the catalog; with ?import=ID all
// lines of the requests that name it do, when the one comes that has ?end too.
func (s *Server) postItems(r *http.Request, _ string) (reply, error) {
	im, err := s.importOf(r)
	if err != nil {
		return reply{}, err
	}
	out, err := s.postBatch(r, im, decodeItemOp)
	if err == nil && im.named {
		err = im.begin() // though nothing changed
	}
	if im.ends && (im.begun || err == nil) {
		err = errors.Join(err, im.end(r.Context()))
	}
	return out, err
}

func decodeItemOp(line []byte) (catalog.Op, error) {
	m, gone, err := wire.DecodeItemLine(line)
	return catalog.Op{PutItem: m, DeleteItem: gone}, err
}

func (s *Server) postUsers(r *http.Request, _ string) (reply, error) {
	return s.postBatch(r, nil, func(line []byte) (catalog.Op, error) {
		m, gone, err := wire.DecodeUserLine(line)
		return catalog.Op{PutUser: m, DeleteUser: gone}, err
	})
}

// batch is a stream of lines under way. Each line is a change by itself: a bad one is told and the
// others are made.
type batch struct {
	s      *Server
	ctx    context.Context
	decode func([]byte) (catalog.Op, error)
	from   *itemImport // nil: of users
	resp   grebev1.BatchResponse
	line   int64 // read so far, blank ones too
	ops    []catalog.Op
	lines  []int64 // of ops
	bytes  int
	// stopped is why no more changes can be made.
	stopped error
}

// postBatch reads lines as they come and changes the catalog by them, in order.
func (s *Server) postBatch(r *http.Request, from *itemImport, decode func([]byte) (catalog.Op, error)) (reply, error) {
	b := &batch{s: s, ctx: r.Context(), from: from, decode: decode}
	err := s.eachLine(r, func() int { return b.bytes }, b.add)
	if err != nil && b.stopped == nil {
		err = errors.Join(err, b.flush()) // what came before is kept: a client that sends it again changes nothing
	}
	if err != nil {
		return reply{}, err
	}
	if err := b.flush(); err != nil {
		return reply{}, err
	}
	if from != nil && from.ends {
		if err := from.end(r.Context()); err != nil {
			return reply{}, err
		}
	}
	if from != nil && from.forecast != nil {
		for _, m := range from.forecast.Impacts() {
			if text := m.Warning(); text != "" {
				b.resp.Warnings = append(b.resp.Warnings, text)
			}
		}
	}
	b.resp.Version = strconv.FormatUint(s.catalog.Stats().Version, 10)
	return reply{body: wire.EncodeBatch(&b.resp)}, nil
}

// eachLine reads the lines of a request as they come. A line that is too long comes with an error. held says how many
// bytes of lines are kept in memory.
func (s *Server) eachLine(r *http.Request, held func() int, take func(line []byte, problem error) error) error {
	if err := checkMediaType(r, "application/x-ndjson", linesLike); err != nil {
		return err
	}
	body, _ := r.Body.(*meteredBody)
	in := &lineReader{r: bufio.NewReaderSize(r.Body, 64<<10), most: s.cfg.MaxBody}
	for {
		line, err := in.next()
		if errors.Is(err, io.EOF) {
			return nil
		}
		if err != nil && !errors.Is(err, errLongLine) {
			return readError(r, err)
		}
		if err := take(line, err); err != nil {
			return err
		}
		if body != nil {
			body.keep(int64(held() + in.r.Buffered() + cap(in.long)))
		}
	}
}

func linesLike(kind string) bool {
	return jsonLike(kind) || kind == "application/x-ndjson" || kind == "application/jsonl" || kind == "application/octet-stream"
}

// add takes a line, or what is wrong with it.
func (b *batch) add(line []byte, problem error) error {
	b.line++
	if problem == nil && len(bytes.TrimSpace(line)) == 0 {
		return nil
	}
	b.resp.Lines++
	if problem != nil {
		b.failed(b.line, errorf(tooLarge, "", "the line has more than %d bytes", b.s.cfg.MaxBody))
		return nil
	}
	op, err := b.decode(line)
	if err != nil {
		b.failed(b.line, err)
		return nil
	}
	b.from.foresee(&op)
	b.ops, b.lines, b.bytes = append(b.ops, op), append(b.lines, b.line), b.bytes+len(line)
	if len(b.ops) >= batchLines || b.bytes >= batchBytes {
		b.stopped = b.flush()
		return b.stopped
	}
	return nil
}

// failed notes what is wrong with a line.
func (b *batch) failed(line int64, err error) {
	b.resp.Failed++
	if len(b.resp.Errors) == batchErrors {
		return
	}
	e := asError(err)
	b.resp.Errors = append(b.resp.Errors, &grebev1.LineError{Line: line, Code: e.code.name, Message: e.Error(), Field: e.field})
}

// flush makes the changes of the lines taken so far. It fails when the catalog takes none any more.
func (b *batch) flush() error {
	if len(b.ops) == 0 {
		return nil
	}
	done, err := b.s.drops.reserve(b.ctx, b.items())
	if err != nil {
		return asError(err)
	}
	defer done()
	release, err := b.s.queue(b.ctx)
	if err != nil {
		return err
	}
	defer release()
	if err := b.from.begin(); err != nil {
		return err
	}
	results := b.s.catalog.ApplyWithin(b.ctx, b.from.name(), b.ops)
	unknown := b.forget(results)
	for i, res := range results {
		op := &b.ops[i]
		switch {
		case errors.Is(res.Err, catalog.ErrFailed), errors.Is(res.Err, catalog.ErrClosed), res.Err != nil && errors.Is(res.Err, b.ctx.Err()):
			return b.s.catalogError(res.Err)
		case res.Err != nil:
			b.failed(b.lines[i], b.s.catalogError(res.Err))
		case op.DeleteUser != "" && b.left(i, res.Changed, unknown):
		case !res.Changed:
			b.resp.Unchanged++
		case op.PutItem == nil && op.PutUser == nil:
			b.resp.Deleted++
		case res.Created:
			b.resp.Created++
		default:
			b.resp.Replaced++
		}
	}
	clear(b.ops)
	b.ops, b.lines, b.bytes = b.ops[:0], b.lines[:0], 0
	return nil
}

// items counts the changes of items.
func (b *batch) items() int {
	n := 0
	for i := range b.ops {
		if b.ops[i].PutUser == nil && b.ops[i].DeleteUser == "" {
			n++
		}
	}
	return n
}

// forget removes what is cached of users who were to be deleted and whom the catalog does not have.
func (b *batch) forget(results []catalog.Result) error {
	var ids []string
	for i := range results {
		if id := b.ops[i].DeleteUser; id != "" && !results[i].Changed && results[i].Err == nil {
			ids = append(ids, id)
		}
	}
	if len(ids) == 0 {
		return nil
	}
	return b.s.FinishDeletion(ids...)
}

// left reports whether something that is cached of a deleted user could not be removed, and tells of it. Unknown is what
// could not be removed of users whom the catalog did not have.
func (b *batch) left(i int, there bool, unknown error) bool {
	if there {
		unknown = nil
	}
	err := b.s.forgotten(b.ctx, b.ops[i].DeleteUser, unknown)
	if err != nil {
		b.failed(b.lines[i], err)
	}
	return err != nil
}

var errLongLine = errors.New("the line is too long")

// lineReader reads lines of at most most bytes. A longer one is passed over, with errLongLine.
type lineReader struct {
	r    *bufio.Reader
	most int64
	long []byte // a line that is longer than the reader's buffer
}

// next returns a line without its end. It is valid until the next call.
func (l *lineReader) next() ([]byte, error) {
	line, err := l.r.ReadSlice('\n')
	if err == nil {
		return bytes.TrimSuffix(line, []byte{'\n'}), l.check(len(line) - 1)
	}
	l.long = l.long[:0]
	tooLong := false
	for {
		if !tooLong {
			l.long = append(l.long, line...)
		}
		if !errors.Is(err, bufio.ErrBufferFull) {
			break
		}
		if tooLong = tooLong || int64(len(l.long)) > l.most; tooLong {
			l.long = nil
		}
		line, err = l.r.ReadSlice('\n')
	}
	switch {
	case err != nil && !errors.Is(err, io.EOF):
		return nil, err
	case tooLong:
		return nil, errLongLine
	case err != nil && len(l.long) == 0:
		return nil, io.EOF
	}
	out := bytes.TrimSuffix(l.long, []byte{'\n'})
	return out, l.check(len(out))
}

func (l *lineReader) check(n int) error {
	if int64(n) > l.most {
		return errLongLine
	}
	return nil
}

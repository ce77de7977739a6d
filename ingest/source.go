package ingest

import (
	"bytes"
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"hash"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"unicode/utf8"

	grebev1 "grebe/api/grebe/v1"
	"grebe/catalog"
	"grebe/internal/cli"
	"grebe/internal/wire"
)

// headBytes is the beginning of a file by which its kind is guessed.
const headBytes = 64 << 10

// reading says how files are read. The zero value takes everything from the file.
type reading struct {
	kind      string
	format    string
	separator string // of CSV
	fields    string // --map
	lists     string // separator of list elements in one cell
	stdin     io.Reader
}

// source is data to import: a file, standard input or the rows of a query.
type source struct {
	path      string // as the user named it
	file      string // what is read
	temporary bool   // file is removed at the end
	kind      string
	why       string // how the kind was determined
	format    string
	packing   string   // ".gz", ".zst" or ""
	size      int64    // bytes of file
	unit      string   // "line" or "row"
	table     *table   // nil: NDJSON in the form of the API
	first     []string // of such NDJSON: the fields of the first line
	query     string   // of a database
	shape     string   // how cells are read, of a table: a resumed import must not change it
}

// newSource checks a file, or standard input if path is "-". The caller MUST call close.
func newSource(path string, how reading) (*source, error) {
	s := &source{path: path, file: path, unit: "line"}
	if path == "-" {
		if how.format == "" {
			return nil, cli.Usagef("standard input has no file name: give --format")
		}
		if how.stdin == nil {
			return nil, cli.Usagef("there is no standard input")
		}
		name, err := spool(how.stdin)
		if err != nil {
			return nil, fmt.Errorf("read standard input: %w", err)
		}
		s.path, s.file, s.temporary = "standard input", name, true
	}
	if err := s.inspect(how); err != nil {
		return nil, errors.Join(err, s.close())
	}
	return s, nil
}

// close removes what the source put on the disk.
func (s *source) close() error {
	if !s.temporary {
		return nil
	}
	return os.Remove(s.file)
}

// inspect finds out format, columns and kind.
func (s *source) inspect(how reading) error {
	f, err := os.Open(s.file)
	if err != nil {
		return err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if !info.Mode().IsRegular() {
		return cli.Usagef("%s is not a file", s.path)
	}
	magic := make([]byte, 4)
	n, err := io.ReadFull(f, magic)
	if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
		return err
	}
	s.size = info.Size()
	if err := s.identify(how.format, magic[:n]); err != nil {
		return err
	}
	pairs, err := parseMap(how.fields)
	if err != nil {
		return err
	}
	columns, head, err := s.columns(how, pairs)
	if err != nil {
		return err
	}
	if s.kind, s.why = how.kind, "as --kind says"; s.kind == "" {
		name := filepath.Base(s.path)
		if s.query != "" { // the address of a database tells nothing
			name = ""
		}
		s.kind, s.why = guessKind(name, pairs, columns, head)
	}
	if s.kind == "" {
		return cli.Usagef("%s: items, users or events? Its name and its first line do not show it: give --kind", s.path)
	}
	if columns == nil {
		s.first = firstFields(s.kind, head)
		return nil
	}
	s.shape = fmt.Sprintf("\x00%q %q %q %q", how.fields, how.lists, how.separator, how.format)
	if s.table, err = newTable(s.kind, columns, pairs, how.lists); err != nil {
		return fmt.Errorf("%s: %w", s.path, err)
	}
	if s.query != "" {
		s.table.convert = "leave the column out if it is binary, or have --query turn it into text"
	}
	s.table.separator, err = separatorOf(s.format, how.separator)
	return err
}

// identify sets format and compression, by the file's first bytes and its name.
func (s *source) identify(format string, magic []byte) error {
	named, packing := formatOf(s.path)
	switch {
	case bytes.HasPrefix(magic, []byte("\x1f\x8b")):
		s.packing = ".gz"
	case bytes.Equal(magic, []byte("\x28\xb5\x2f\xfd")):
		s.packing = ".zst"
	case packing != "":
		return fmt.Errorf("%s: not %s data, as its name says: it is empty, cut off, damaged or not compressed. Copy or "+
			"export it again, or correct its name",
			s.path, packing[1:])
	case bytes.Equal(magic, []byte("PAR1")):
		named = formatParquet
	}
	if s.format = named; format != "" {
		s.format = format
	}
	return nil
}

// columns returns the names of the columns, or the beginning of a source without columns.
func (s *source) columns(how reading, pairs []pair) (columns []string, head []byte, err error) {
	if s.format == formatParquet {
		columns, err = s.parquetColumns()
		return columns, nil, err
	}
	in, err := openStream(s.file, s.packing)
	if err != nil {
		return nil, nil, s.named(err)
	}
	defer in.close()
	head = make([]byte, headBytes)
	n, err := io.ReadFull(in, head)
	if err != nil && !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) && n == 0 {
		return nil, nil, fmt.Errorf("%s: %w", s.path, err)
	}
	head = head[:n]
	if err := checkEncoding(head); err != nil {
		return nil, nil, fmt.Errorf("%s: %w", s.path, err)
	}
	if s.format == formatNDJSON {
		if err := checkLines(head); err != nil {
			return nil, nil, fmt.Errorf("%s:1: %w", s.path, err)
		}
		for _, p := range pairs {
			if !slices.Contains(columns, p.column) {
				columns = append(columns, p.column)
			}
		}
		return columns, bytes.TrimPrefix(head, utf8Mark), nil
	}
	separator, err := separatorOf(s.format, how.separator)
	if err != nil {
		return nil, nil, err
	}
	first := bytes.TrimLeft(head, "\r\n")
	if end, _ := splitCSV(separator)(first); end > 0 {
		first = first[:end]
	} else if n == headBytes {
		return nil, nil, fmt.Errorf("%s: the header has more than %d bytes: is this %s?", s.path, headBytes, s.format)
	}
	if len(bytes.TrimSpace(first)) == 0 {
		return nil, nil, fmt.Errorf("%s: the file is empty: want a header with the names of the columns", s.path)
	}
	if columns, err = readHeader(bytes.TrimRight(first, "\r\n"), separator); err != nil {
		return nil, nil, fmt.Errorf("%s:1: %w", s.path, err)
	}
	return columns, nil, nil
}

// named replaces the name of a temporary file in an error.
func (s *source) named(err error) error {
	if s.temporary {
		return errors.New(strings.ReplaceAll(err.Error(), s.file, s.path))
	}
	return err
}

// guessKind guesses what a file holds by its name, by its columns, or by its first line.
func guessKind(name string, pairs []pair, columns []string, head []byte) (kind, why string) {
	name = strings.ToLower(name)
	for _, k := range []string{kindItems, kindUsers, kindEvents} {
		if !strings.Contains(name, strings.TrimSuffix(k, "s")) {
			continue
		}
		if kind != "" {
			kind = ""
			break
		}
		kind = k
	}
	if kind != "" {
		return kind, "by its name"
	}
	if columns != nil {
		fields := columns
		if len(pairs) > 0 {
			fields = nil
			for _, p := range pairs {
				fields = append(fields, p.field)
			}
		}
		return kindOfFields(fields), "by its columns"
	}
	first, _, _ := bytes.Cut(bytes.TrimLeft(head, " \t\r\n"), []byte{'\n'})
	for _, k := range []string{kindItems, kindUsers, kindEvents} {
		if _, err := decodeLine(k, first); err != nil {
			continue
		}
		if kind != "" {
			return "", ""
		}
		kind = k
	}
	return kind, "by its first line"
}

// decodeLine decodes a line of a kind.
func decodeLine(kind string, in []byte) (catalog.Op, error) {
	switch kind {
	case kindUsers:
		m, gone, err := wire.DecodeUserLine(in)
		return catalog.Op{PutUser: m, DeleteUser: gone}, err
	case kindEvents:
		user, e, err := wire.DecodeEventLine(in)
		if err != nil {
			return catalog.Op{}, err
		}
		return eventOp(user, e)
	}
	m, gone, err := wire.DecodeItemLine(in)
	return catalog.Op{PutItem: m, DeleteItem: gone}, err
}

// line is a record of a source that is not blank.
type line struct {
	number int64  // from 1: its first line in the file, or its row
	start  int64  // offset in the decompressed file, or its row
	text   []byte // as the source has it; nil if it has cells
	cells  []cell
	op     catalog.Op
	err    error  // why the record is bad; nil if it is not
	sum    uint32 // of a dry run: what is put, hashed
}

// chunk is a run of records.
type chunk struct {
	lines   []line
	end     int64 // offset after it
	endLine int64
	digest  string // of everything before end
	read    int64  // bytes of the file that were read
	err     error  // reading failed
}

// reader returns the records of a source in order, not decoded. next returns nil at the end.
type reader interface {
	next() *chunk
	close() error
}

// open returns a reader of the source from its start. The caller MUST close it.
func (s *source) open() (reader, error) {
	if s.format == formatParquet {
		return s.openParquet()
	}
	in, err := openStream(s.file, s.packing)
	if err != nil {
		return nil, s.named(err)
	}
	split, header := splitter(splitLine), false
	if s.format != formatNDJSON {
		split, header = splitCSV(s.table.separator), true
	}
	return &textReader{in: in, blocks: newBlockReader(in, split, !header), header: header, rows: s.unit == "row"}, nil
}

// textReader reads NDJSON and CSV.
type textReader struct {
	in     *stream
	blocks *blockReader
	header bool // the next record is the header
	rows   bool // records are numbered, not lines
	row    int64
}

func (r *textReader) close() error { return r.in.close() }

func (r *textReader) next() *chunk {
	c := r.blocks.next()
	if c == nil {
		return nil
	}
	c.read = r.in.bytes.Load()
	if r.header && len(c.lines) > 0 {
		r.header = false
		c.lines = c.lines[1:]
	}
	if r.rows {
		for i := range c.lines {
			r.row++
			c.lines[i].number = r.row
		}
		c.endLine = r.row
	}
	return c
}

// decode decodes a record. It is safe for concurrent use.
func (s *source) decode(l *line) {
	if l.err != nil {
		return
	}
	if l.start == 0 {
		l.text = bytes.TrimPrefix(l.text, utf8Mark)
	}
	switch {
	case s.table == nil:
		if l.op, l.err = decodeLine(s.kind, l.text); l.err == nil {
			l.err = l.op.Check() // here: an import stops at it, and changes nothing after it
		} else if !utf8.Valid(l.text) {
			l.err = fmt.Errorf("%w: %s", l.err, convertFile)
		}
		return
	case s.format == formatNDJSON:
		l.cells, l.err = s.table.decodeMapped(l.text)
	case s.format != formatParquet:
		l.cells, l.err = s.table.decodeCSV(l.text)
	}
	if l.err == nil {
		l.op, l.err = s.table.op(l.cells)
	}
	if l.err == nil {
		l.err = l.op.Check()
	}
	l.cells, l.text, l.err = nil, nil, s.table.in(l.err)
}

// encode writes a decoded record as a line of the API.
func (l *line) encode(b *bytes.Buffer) {
	switch op := &l.op; {
	case l.text != nil && op.AppendEvents == nil:
		b.Write(bytes.TrimSpace(l.text))
		b.WriteByte('\n')
	case op.PutItem != nil:
		b.Write(wire.EncodeItem(op.PutItem))
	case op.PutUser != nil:
		b.Write(wire.EncodeUser(op.PutUser))
	case op.AppendEvents != nil:
		b.Write(wire.EncodeEventLine(op.AppendEvents.Id, op.AppendEvents.Events[0]))
	}
}

// chunks reads a source from its start, decodes its records on all cores and returns them in order. There it also calls
// prepare for those that are good, unless it is nil. The caller MUST end ctx and call wait.
func (s *source) chunks(ctx context.Context,
	prepare func(*line)) (out <-chan chan *chunk, wait func(), err error) {
	r, err := s.open()
	if err != nil {
		return nil, nil, err
	}
	type task struct {
		part *chunk
		out  chan *chunk
	}
	workers := runtime.GOMAXPROCS(0)
	order, tasks := make(chan chan *chunk, 2*workers), make(chan task)
	var wg sync.WaitGroup
	wg.Go(func() {
		defer r.close()
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
					l := &t.part.lines[i]
					if s.decode(l); l.err == nil && prepare != nil {
						prepare(l)
					}
				}
				t.out <- t.part
			}
		})
	}
	return order, wg.Wait, nil
}

// parts passes the records to visit, decoded and in order, until visit fails or ctx ends. prepare is as chunks has it.
func (s *source) parts(ctx context.Context, prepare func(*line), visit func(*chunk) error) error {
	ctx, cancel := context.WithCancel(ctx)
	chunks, wait, err := s.chunks(ctx, prepare)
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
			return fmt.Errorf("read %s: after %s %d: %w", s.path, s.unit, part.endLine, part.err)
		}
		if err := visit(part); err != nil {
			return err
		}
	}
	return ctx.Err()
}

// each visits all records of the source, in order.
func (s *source) each(ctx context.Context, visit func(*line)) error {
	return s.parts(ctx, nil, func(part *chunk) error {
		for i := range part.lines {
			visit(&part.lines[i])
		}
		return nil
	})
}

// EachItem visits the items that a file of NDJSON puts into the catalog, in order. It skips bad lines.
func EachItem(ctx context.Context, file string, visit func(*grebev1.Item)) error {
	src, err := newSource(file, reading{kind: kindItems, format: formatNDJSON})
	if err != nil {
		return err
	}
	return src.each(ctx, func(l *line) {
		if l.err == nil && l.op.PutItem != nil {
			visit(l.op.PutItem)
		}
	})
}

// write writes the good records to w, as lines of the API.
func (s *source) write(ctx context.Context, w io.Writer) error {
	return s.parts(ctx, nil, func(part *chunk) error {
		var b bytes.Buffer
		for i := range part.lines {
			if l := &part.lines[i]; l.err == nil {
				l.encode(&b)
			}
		}
		_, err := w.Write(b.Bytes())
		return err
	})
}

// prefixSum hashes what an import has read before an offset.
func (s *source) prefixSum(offset int64) (hash.Hash, error) {
	sum := sha256.New()
	if s.format == formatParquet {
		f, err := os.Open(s.file)
		if err != nil {
			return nil, err
		}
		defer f.Close()
		_, err = io.Copy(sum, f)
		return sum, err
	}
	in, err := openStream(s.file, s.packing)
	if err != nil {
		return nil, s.named(err)
	}
	defer in.close()
	if _, err := io.CopyN(sum, in, offset); err != nil && !errors.Is(err, io.EOF) {
		return nil, fmt.Errorf("read %s: %w", s.path, err)
	}
	return sum, nil
}

package server

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"net/http"
	"net/url"

	grebev1 "grebe/api/grebe/v1"
	"grebe/catalog"
	"grebe/generate"
	"grebe/internal/wire"
	"grebe/serve"
)

// postItems changes the items listed in the body, one per line. A request makes one version of the catalog. With
// ?import=ID all requests of that ID make one version together, when the last one comes with ?end.
func (s *Server) postItems(r *http.Request, _ string) (reply, error) {
	q, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return reply{}, serve.Errorf(serve.InvalidArgument, "", "the query cannot be read: %v", err)
	}
	im, err := s.service.Import(q.Get("import"), q.Has("import"), q.Has("end"))
	if err != nil {
		return reply{}, err
	}
	return s.postBatch(r, im, decodeItemOp)
}

func decodeItemOp(line []byte) (catalog.Op, error) {
	m, gone, err := wire.DecodeItemLine(line)
	return catalog.Op{PutItem: m, DeleteItem: gone}, err
}

func (s *Server) postUsers(r *http.Request, _ string) (reply, error) {
	return s.postBatch(r, nil, decodeUserOp)
}

func decodeUserOp(line []byte) (catalog.Op, error) {
	m, gone, err := wire.DecodeUserLine(line)
	return catalog.Op{PutUser: m, DeleteUser: gone}, err
}

// postEventsBatch appends events of many users. Events whose ids their users have are counted as unchanged.
func (s *Server) postEventsBatch(r *http.Request, _ string) (reply, error) {
	return s.postBatch(r, nil, decodeEventOp)
}

func decodeEventOp(line []byte) (catalog.Op, error) {
	user, e, err := wire.DecodeEventLine(line)
	if err != nil {
		return catalog.Op{}, err
	}
	return catalog.Op{AppendEvents: &grebev1.AppendEventsRequest{Id: user, Events: []*grebev1.Event{e}}}, nil
}

// postBatch changes the catalog line by line, in order, while the body arrives.
func (s *Server) postBatch(r *http.Request, from *serve.Import,
	decode func([]byte) (catalog.Op, error)) (reply, error) {
	b := s.service.NewBatch(r.Context(), from, s.queue)
	n := int64(0) // lines read so far, including blank ones
	resp, err := b.End(s.eachLine(r, b.Held, func(line []byte, problem error) error {
		n++
		if problem == nil && len(bytes.TrimSpace(line)) == 0 {
			return nil
		}
		b.Count()
		if problem != nil {
			b.Fail(n, serve.Errorf(serve.TooLarge, "", "the line has more than %d bytes", s.cfg.MaxBody))
			return nil
		}
		op, err := decode(line)
		if err != nil {
			b.Fail(n, err)
			return nil
		}
		return b.Add(n, op, len(line))
	}))
	if err != nil {
		return reply{}, err
	}
	return reply{body: wire.EncodeBatch(resp)}, nil
}

// checked is the effect that a batch would have.
type checked struct {
	Lines     int64             `json:"lines"`
	Created   int64             `json:"created"`
	Replaced  int64             `json:"replaced"`
	Deleted   int64             `json:"deleted"`
	Unchanged int64             `json:"unchanged"`
	Failed    int64             `json:"failed"`
	Errors    []checkedLine     `json:"errors"` // the first ones
	Models    []generate.Impact `json:"models"` // models that have codes
	Warnings  []string          `json:"warnings,omitempty"`
}

type checkedLine struct {
	Line    int64  `json:"line"`
	Message string `json:"message"`
}

// postCheckItems reads lines as postItems does but changes nothing. It answers what they would change, and which items
// each model could recommend afterwards.
func (s *Server) postCheckItems(r *http.Request, _ string) (reply, error) {
	return s.postCheck(r, decodeItemOp)
}

func (s *Server) postCheckUsers(r *http.Request, _ string) (reply, error) {
	return s.postCheck(r, decodeUserOp)
}

func (s *Server) postCheckEvents(r *http.Request, _ string) (reply, error) {
	return s.postCheck(r, decodeEventOp)
}

func (s *Server) postCheck(r *http.Request, decode func([]byte) (catalog.Op, error)) (reply, error) {
	out := checked{Errors: []checkedLine{}}
	f := s.service.Forecast()
	n := int64(0)
	err := s.eachLine(r, func() int { return 0 }, func(line []byte, problem error) error {
		n++
		if problem == nil && len(bytes.TrimSpace(line)) == 0 {
			return nil
		}
		out.Lines++
		op, err := decode(line)
		if err = errors.Join(problem, err); err == nil {
			res, away := f.Foresee(r.Context(), &op)
			if away != nil {
				return away
			}
			err = out.add(&op, res)
		}
		if err != nil {
			if out.Failed++; len(out.Errors) < 100 {
				out.Errors = append(out.Errors, checkedLine{n, err.Error()})
			}
		}
		return nil
	})
	if err != nil {
		return reply{}, err
	}
	out.Models, out.Warnings = f.Impacts(), f.Warnings()
	return asJSON(out)
}

// add counts what a change would do. It returns the error that the change would have.
func (c *checked) add(op *catalog.Op, res catalog.Result) error {
	switch {
	case res.Err != nil:
		return res.Err
	case op.AppendEvents != nil:
		c.Created, c.Unchanged = c.Created+1-int64(res.Duplicates), c.Unchanged+int64(res.Duplicates)
	case !res.Changed:
		c.Unchanged++
	case op.PutItem == nil && op.PutUser == nil:
		c.Deleted++
	case res.Created:
		c.Created++
	default:
		c.Replaced++
	}
	return nil
}

// eachLine calls take for each line of a request as it arrives. A line that is too long comes as an error. held
// returns the bytes of earlier lines that are still in memory.
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
	return jsonLike(kind) || kind == "application/x-ndjson" || kind == "application/jsonl" ||
		kind == "application/octet-stream"
}

var errLongLine = errors.New("the line is too long")

// lineReader reads lines of at most most bytes. It skips longer ones and returns errLongLine.
type lineReader struct {
	r    *bufio.Reader
	most int64
	long []byte // buffer for a line that does not fit into r
}

// next returns a line without its newline. It is valid until the next call.
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

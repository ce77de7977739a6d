package ingest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"net/http"
	"net/url"
	"strings"
	"time"

	"grebe/catalog"
	"grebe/generate"
	"grebe/internal/cli"
	"grebe/internal/config"
	"grebe/internal/datadir"
)

// counts are the numbers of lines by outcome.
type counts struct {
	Created   int64 `json:"created"`
	Replaced  int64 `json:"replaced"`
	Deleted   int64 `json:"deleted"`
	Unchanged int64 `json:"unchanged"`
	Failed    int64 `json:"failed"`
	// Of those that are not bad.
	Empty   int64                `json:"empty"`   // items without text, tokens and codes
	Unknown catalog.UnknownItems `json:"unknown"` // events whose items the destination does not have
}

func (n *counts) total() int64 { return n.Created + n.Replaced + n.Deleted + n.Unchanged + n.Failed }

// sink is the destination of an import.
type sink interface {
	name() string
	// identity returns the catalog's id.
	identity(ctx context.Context) (string, error)
	// forecast reports what files of items would do to the models.
	forecast(ctx context.Context, files []*source) ([]generate.Impact, error)
	// begin begins an import or continues one. The whole import becomes one version at its end.
	begin(id string, again bool) error
	importID() string
	end(ctx context.Context) error
	// preparer returns what prepares a change on any core before it is applied or previewed; nil: nothing does.
	preparer() func(*catalog.Op)
	// apply applies the lines without an error and returns when they are durable. It returns an error for each line
	// that was refused.
	apply(ctx context.Context, kind string, lines []line, n *counts) ([]error, error)
	// preview counts what apply would do, and changes nothing.
	preview(ctx context.Context, kind string, lines []line, n *counts) ([]error, error)
	// stored returns the numbers of items and users in the catalog.
	stored(ctx context.Context) (items, users int64, err error)
	close() error
}

// localSink is a catalog that this process has to itself.
type localSink struct {
	c      *catalog.Catalog
	dir    string
	config string // names the models; "": they are unknown
	codes  func(*config.Config, *catalog.Catalog) ([]generate.Codes, error)
	w      *cli.World
	id     string
}

func (s *localSink) name() string { return s.dir }

func (s *localSink) close() error { return s.c.Close() }

func (s *localSink) identity(context.Context) (string, error) { return s.c.Stats().ID, nil }

func (s *localSink) importID() string { return s.id }

func (s *localSink) preparer() func(*catalog.Op) { return s.c.Prepare }

// forecast reads the files once before the import reads them.
func (s *localSink) forecast(ctx context.Context, files []*source) ([]generate.Impact, error) {
	if s.config == "" {
		return nil, nil
	}
	cfg, err := config.Load(config.Source{File: s.config, Env: s.w.Env})
	if err != nil {
		return nil, err
	}
	models, err := s.codes(&cfg.Config, s.c)
	if err != nil || len(models) == 0 {
		return nil, err
	}
	f := generate.NewForecast(s.c.Item, models...)
	for _, src := range files {
		err := src.each(ctx, func(l *line) {
			switch {
			case l.err != nil:
			case l.op.PutItem != nil:
				f.Put(l.op.PutItem.Id, l.op.PutItem.Codes)
			default:
				f.Delete(l.op.DeleteItem)
			}
		})
		if err != nil {
			return nil, err
		}
	}
	return f.Impacts(), nil
}

// begin records earlier changes as a version of their own.
func (s *localSink) begin(id string, again bool) error {
	s.id = id
	if again {
		return nil
	}
	return s.record()
}

func (s *localSink) end(context.Context) error { return s.record() }

// record makes the current catalog a version, unless it is one.
func (s *localSink) record() error {
	// the server drops old versions
	return generate.Record(s.c, generate.KeeperOptions{Dir: datadir.Versions(s.dir), Keep: math.MaxInt})
}

func (s *localSink) apply(_ context.Context, _ string, lines []line, n *counts) ([]error, error) {
	ops, at := goodOps(lines)
	problems := make([]error, len(lines))
	for i, r := range s.c.Apply(ops) {
		if errors.Is(r.Err, catalog.ErrFailed) {
			return nil, r.Err
		}
		n.add(&ops[i], &r)
		s.unknown(n, &ops[i], &r)
		problems[at[i]] = r.Err
	}
	return problems, nil
}

// unknown counts an event whose item the catalog does not have.
func (s *localSink) unknown(n *counts, op *catalog.Op, r *catalog.Result) {
	if r.Err != nil {
		return
	}
	for _, e := range op.AppendEvents.GetEvents() {
		if _, ok := s.c.Item(e.Item); !ok {
			n.Unknown.Add(e.Item, 1)
		}
	}
}

// serverSink imports through a running server.
type serverSink struct {
	base   string
	client *http.Client
	id     string    // of the import
	out    io.Writer // for people
}

func newServerSink(w *cli.World, server string, access *cli.AccessFlags) (*serverSink, error) {
	if _, err := cli.ServerURL(server); err != nil {
		return nil, err
	}
	client, err := access.Client(w, 5*time.Minute)
	if err != nil {
		return nil, err
	}
	return &serverSink{base: strings.TrimRight(server, "/"), client: client, out: w.Stderr}, nil
}

func (s *serverSink) name() string { return s.base }

func (s *serverSink) close() error {
	s.client.CloseIdleConnections()
	return nil
}

func (s *serverSink) identity(ctx context.Context) (string, error) {
	var a struct {
		ID string `json:"id"`
	}
	if err := s.call(ctx, http.MethodGet, "/v1/catalog", nil, &a); err != nil {
		return "", err
	}
	if a.ID == "" { // a server of another version
		return s.base, nil
	}
	return a.ID, nil
}

func (s *serverSink) preparer() func(*catalog.Op) { return nil }

func (s *serverSink) importID() string { return s.id }

// forecast sends the files to the server, which evaluates them.
func (s *serverSink) forecast(ctx context.Context, files []*source) ([]generate.Impact, error) {
	in, out := io.Pipe()
	read := make(chan error, 1)
	go func() {
		var err error
		for _, src := range files {
			if err = src.write(ctx, out); err != nil {
				break
			}
		}
		out.CloseWithError(err) // nil: end of file
		read <- err
	}()
	var a struct {
		Models []generate.Impact `json:"models"`
	}
	err := s.call(ctx, http.MethodPost, "/v1/items:check", in, &a)
	in.Close()
	if failed := <-read; failed != nil && !errors.Is(failed, io.ErrClosedPipe) { // not the server's fault
		return nil, failed
	}
	return a.Models, err
}

func (s *serverSink) begin(id string, _ bool) error {
	s.id = id
	return nil
}

func (s *serverSink) end(ctx context.Context) error {
	err := s.call(ctx, http.MethodPost, "/v1/items:batch?end&import="+url.QueryEscape(s.id), strings.NewReader(""),
		&batchAnswer{})
	if err != nil {
		return err
	}
	s.warn(ctx)
	return nil
}

// warn names the models that do not generate what was imported, because an earlier version was activated.
func (s *serverSink) warn(ctx context.Context) {
	var a struct {
		Models []struct {
			Model, Version string
			Pinned         bool
		}
	}
	if s.call(ctx, http.MethodGet, "/v1/catalog", nil, &a) != nil {
		return // the import is done
	}
	for _, m := range a.Models {
		if m.Pinned {
			fmt.Fprintf(s.out, "Model %s stays at version %s, which was activated. To let it follow the catalog: "+
				"curl %s/v1/catalog:activate -d '{\"version\": \"auto\"}'\n", m.Model, m.Version, s.base)
		}
	}
}

// batchAnswer is the response to a batch.
type batchAnswer struct {
	counts
	Errors []struct {
		Line    int    `json:"line"`
		Message string `json:"message"`
	} `json:"errors"`
	Warnings []string `json:"warnings"`
}

// maxResponse limits the bytes read of an answer.
const maxResponse = 256 << 20

// sendLines limits the lines of a batch. It is below the number of errors in a response, so that every error is
// reported.
const sendLines = 100

func (s *serverSink) apply(ctx context.Context, kind string, lines []line, n *counts) ([]error, error) {
	return s.send(lines, n, func(body []byte) (*batchAnswer, error) { return s.post(ctx, kind, body) })
}

func (s *serverSink) post(ctx context.Context, kind string, body []byte) (*batchAnswer, error) {
	path := "/v1/" + kind + ":batch"
	if kind == kindItems && s.id != "" { // else every request is an import of its own
		path += "?import=" + url.QueryEscape(s.id)
	}
	var a batchAnswer
	return &a, s.call(ctx, http.MethodPost, path, bytes.NewReader(body), &a)
}

// call sends a request and reads the answer into out.
func (s *serverSink) call(ctx context.Context, method, path string, body io.Reader, out any) error {
	req, err := http.NewRequestWithContext(ctx, method, s.base+path, body)
	if err != nil {
		return err
	}
	if body != nil {
		req.Header.Set("Content-Type", "application/x-ndjson")
	}
	resp, err := s.client.Do(req)
	if err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		return fmt.Errorf("import: %w", cli.Unanswered(err))
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(io.LimitReader(resp.Body, maxResponse))
	if err != nil {
		return fmt.Errorf("read the answer of %s: %w", s.base, err)
	}
	if resp.StatusCode != http.StatusOK {
		return cli.ServerError(resp, text)
	}
	if err := json.Unmarshal(text, out); err != nil {
		return fmt.Errorf("read the answer of %s: %w", s.base, err)
	}
	return nil
}

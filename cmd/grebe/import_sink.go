package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"grebe/catalog"
)

// counts are what became of lines.
type counts struct {
	Created   int64 `json:"created"`
	Replaced  int64 `json:"replaced"`
	Deleted   int64 `json:"deleted"`
	Unchanged int64 `json:"unchanged"`
	Failed    int64 `json:"failed"`
}

// sink is what lines are imported into.
type sink interface {
	name() string
	// apply makes the changes of the lines without an error and returns when they are durable, with
	// what is wrong with each line, if anything.
	apply(ctx context.Context, kind string, lines []line, n *counts) ([]error, error)
	close() error
}

// localSink is a catalog that this process has to itself.
type localSink struct {
	c   *catalog.Catalog
	dir string
}

func (s *localSink) name() string { return s.dir }

func (s *localSink) close() error { return s.c.Close() }

func (s *localSink) apply(_ context.Context, _ string, lines []line, n *counts) ([]error, error) {
	ops := make([]catalog.Op, 0, len(lines))
	at := make([]int, 0, len(lines))
	for i := range lines {
		if lines[i].err == nil {
			ops, at = append(ops, lines[i].op), append(at, i)
		}
	}
	var gone []string
	for i := range ops {
		if ops[i].DeleteUser != "" {
			gone = append(gone, ops[i].DeleteUser)
		}
	}
	if err := noteDeleted(s.dir, gone); err != nil {
		return nil, err
	}
	problems := make([]error, len(lines))
	for i, r := range s.c.Apply(ops) {
		switch {
		case errors.Is(r.Err, catalog.ErrFailed):
			return nil, r.Err
		case r.Err != nil:
			problems[at[i]] = r.Err
		case !r.Changed:
			n.Unchanged++
		case ops[i].PutItem == nil && ops[i].PutUser == nil:
			n.Deleted++
		case r.Created:
			n.Created++
		default:
			n.Replaced++
		}
	}
	return problems, nil
}

// serverSink is a running server.
type serverSink struct {
	base   string
	client *http.Client
}

func newServerSink(w *world, server string, access *accessFlags) (*serverSink, error) {
	u, err := url.Parse(server)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return nil, usagef("--server %q: want an address such as http://127.0.0.1:8080", server)
	}
	client, err := access.client(w, 5*time.Minute)
	if err != nil {
		return nil, err
	}
	return &serverSink{base: strings.TrimRight(server, "/"), client: client}, nil
}

func (s *serverSink) name() string { return s.base }

func (s *serverSink) close() error {
	s.client.CloseIdleConnections()
	return nil
}

// batchAnswer is the response to a batch.
type batchAnswer struct {
	counts
	Errors []struct {
		Line    int    `json:"line"`
		Message string `json:"message"`
	} `json:"errors"`
}

// sendLines bounds the lines of a batch, below the errors that a response tells: then it tells all.
const sendLines = 100

func (s *serverSink) apply(ctx context.Context, kind string, lines []line, n *counts) ([]error, error) {
	problems := make([]error, len(lines))
	var at []int // index of each line sent
	var body bytes.Buffer
	flush := func() error {
		if len(at) == 0 {
			return nil
		}
		answer, err := s.post(ctx, kind, body.Bytes())
		if err != nil {
			return err
		}
		n.Created, n.Replaced = n.Created+answer.Created, n.Replaced+answer.Replaced
		n.Deleted, n.Unchanged = n.Deleted+answer.Deleted, n.Unchanged+answer.Unchanged
		for _, e := range answer.Errors {
			if e.Line >= 1 && e.Line <= len(at) {
				problems[at[e.Line-1]] = errors.New(e.Message)
			}
		}
		at = at[:0]
		body.Reset()
		return nil
	}
	for i := range lines {
		if lines[i].err != nil {
			continue
		}
		body.Write(bytes.TrimSpace(lines[i].text))
		body.WriteByte('\n')
		if at = append(at, i); len(at) == sendLines {
			if err := flush(); err != nil {
				return nil, err
			}
		}
	}
	return problems, flush()
}

func (s *serverSink) post(ctx context.Context, kind string, body []byte) (*batchAnswer, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, s.base+"/v1/"+kind+":batch", bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Header.Set("Content-Type", "application/x-ndjson")
	resp, err := s.client.Do(req)
	if err != nil {
		return nil, fmt.Errorf("%w (does the server run?)", err)
	}
	defer resp.Body.Close()
	text, err := io.ReadAll(io.LimitReader(resp.Body, maxResponse))
	if err != nil {
		return nil, fmt.Errorf("read the answer of %s: %w", s.base, err)
	}
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("%s answered %s: %s", s.base, resp.Status, bytes.TrimSpace(text))
	}
	var a batchAnswer
	if err := json.Unmarshal(text, &a); err != nil {
		return nil, fmt.Errorf("read the answer of %s: %w", s.base, err)
	}
	return &a, nil
}

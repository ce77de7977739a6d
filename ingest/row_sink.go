package ingest

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"

	"grebe/embed"
	"grebe/internal/cli"
	"grebe/internal/config"
	"grebe/internal/datadir"
)

// localRows writes rows to a table's store.
type localRows struct {
	ctx    context.Context
	tables *embed.Tables
	table  *embed.Table
}

func newLocalRows(ctx context.Context, cfg *config.Config, specs []embed.Spec, name string) (*localRows, error) {
	at := slices.IndexFunc(specs, func(s embed.Spec) bool { return s.Name == name })
	if at < 0 {
		return nil, fmt.Errorf("the configuration has no table %q", name)
	}
	if err := datadir.Check(cfg.DataDir); err != nil {
		return nil, err
	}
	spec := specs[at]
	spec.Cache = 0
	tables, err := embed.OpenTables(datadir.Tables(cfg.DataDir), []embed.Spec{spec})
	if err != nil {
		return nil, fmt.Errorf("%w (if a server runs on %s, write through it with --server)", err, cfg.DataDir)
	}
	return &localRows{ctx, tables, tables.Table(name)}, nil
}

func (l *localRows) dim() int { return l.table.Dim() }

func (l *localRows) put(keys []uint64, rows []float32) error {
	return l.table.PutFloats(l.ctx, keys, rows)
}

func (l *localRows) close() error { return errors.Join(l.tables.Sync(), l.tables.Close()) }

// serverRows writes rows through a running server.
type serverRows struct {
	ctx     context.Context
	url     string
	client  *http.Client
	numbers int
	body    bytes.Buffer
}

func newServerRows(w *cli.World, c *Rows) (*serverRows, error) {
	if c.Dim <= 0 {
		return nil, cli.Usagef("--server needs --dim, the numbers of a row")
	}
	s, err := newServerSink(w, c.Server, c.Access)
	if err != nil {
		return nil, err
	}
	return &serverRows{ctx: w.Ctx, url: s.base + "/v1/tables/" + url.PathEscape(c.Table), client: s.client,
		numbers: c.Dim}, nil
}

func (s *serverRows) dim() int { return s.numbers }

func (s *serverRows) put(keys []uint64, rows []float32) error {
	s.body.Reset()
	for i, k := range keys {
		line, err := json.Marshal(struct {
			Key uint64    `json:"key"`
			Row []float32 `json:"row"`
		}{k, rows[i*s.numbers : (i+1)*s.numbers]})
		if err != nil {
			return err
		}
		s.body.Write(line)
		s.body.WriteByte('\n')
	}
	r, err := http.NewRequestWithContext(s.ctx, http.MethodPost, s.url, &s.body)
	if err != nil {
		return err
	}
	answer, err := s.client.Do(r)
	if err != nil {
		return cli.Unanswered(err)
	}
	defer answer.Body.Close()
	if answer.StatusCode != http.StatusOK {
		text, _ := io.ReadAll(io.LimitReader(answer.Body, 1<<12))
		return cli.ServerError(answer, text)
	}
	_, err = io.Copy(io.Discard, answer.Body)
	return err
}

func (s *serverRows) close() error { return nil }

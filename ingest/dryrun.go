package ingest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net/http"

	"grebe/catalog"
	"grebe/internal/cli"
)

// dryRun reports what an import would do, and changes nothing.
func (c *Import) dryRun(w *cli.World, files []*source, dst sink) error {
	ids := newSeen()
	defer ids.close()
	bad, present, base := int64(0), int64(0), int64(0)
	var items []*source
	for _, src := range files {
		ids.next(src, base)
		j := &job{c: c, w: w, src: src, dst: dst, ids: ids, state: &importState{}}
		if c.LastWins {
			j.ids = nil
		}
		j.bar = newProgressBar(w, src, j.state)
		err := j.src.parts(w.Ctx, dst.preparer(), j.foresee)
		j.bar.done()
		if err != nil {
			return err
		}
		s := j.state
		fmt.Fprintf(w.Stdout, "%s: %d %ss: %d new, %d changed, %d the same, %d deleted, %d bad\n", src.path,
			s.Created+s.Replaced+s.Deleted+s.Unchanged+s.Failed, src.unit, s.Created, s.Replaced, s.Unchanged, s.Deleted,
			s.Failed)
		bad, base = bad+s.Failed, base+s.Line
		if src.kind == kindItems {
			items, present = append(items, src), present+s.Replaced+s.Unchanged+s.Deleted
		}
	}
	if len(items) > 0 {
		if err := c.foretold(w, items, dst, present); err != nil {
			return err
		}
	}
	fmt.Fprintln(w.Stdout, "This was a dry run: nothing was changed.")
	if bad > 0 {
		return fmt.Errorf("%d bad records: correct them, or let --on-error skip pass over them", bad)
	}
	return nil
}

// foretold reports what the items would do to the catalog as a whole and to the models.
func (c *Import) foretold(w *cli.World, items []*source, dst sink, present int64) error {
	total, err := dst.items(w.Ctx)
	if err != nil {
		return err
	}
	if left := total - present; left > 0 {
		fmt.Fprintf(w.Stdout, "%d of the catalog's %d items are not in the files: an import keeps them, replacing the "+
			"catalog would delete them.\n", left, total)
	}
	impacts, err := dst.forecast(w.Ctx, items)
	if err != nil {
		return err
	}
	for _, m := range impacts {
		fmt.Fprintf(w.Stdout, "Model %q can generate %d items, and could generate %d.\n", m.Model, m.Before, m.After)
		if text := m.Warning(); text != "" {
			fmt.Fprintln(w.Stdout, "Warning: "+text)
		}
	}
	return nil
}

// foresee counts what a part of the file would change, and lists what is bad.
func (j *job) foresee(part *chunk) error {
	j.state.read, j.state.Line = part.read, part.endLine
	lines := j.fresh(part)
	problems, err := j.dst.preview(j.w.Ctx, j.src.kind, lines, &j.state.counts)
	if err != nil {
		return err
	}
	for i := range lines {
		if lines[i].err == nil && problems[i] != nil {
			lines[i].err = problems[i]
		}
		if lines[i].err != nil {
			j.list(&lines[i])
		}
	}
	j.bar.update()
	return nil
}

func (s *localSink) items(context.Context) (int64, error) { return int64(s.c.Stats().Items), nil }

func (s *localSink) preview(_ context.Context, _ string, lines []line, n *counts) ([]error, error) {
	ops, at := goodOps(lines)
	problems := make([]error, len(lines))
	for i, r := range s.c.Preview(ops) {
		n.add(&ops[i], &r)
		problems[at[i]] = r.Err
	}
	return problems, nil
}

// goodOps returns the changes of the records without an error, and where they are.
func goodOps(lines []line) (ops []catalog.Op, at []int) {
	ops, at = make([]catalog.Op, 0, len(lines)), make([]int, 0, len(lines))
	for i := range lines {
		if lines[i].err == nil {
			ops, at = append(ops, lines[i].op), append(at, i)
		}
	}
	return ops, at
}

// add counts what became of a change.
func (n *counts) add(op *catalog.Op, r *catalog.Result) {
	switch {
	case r.Err != nil:
	case op.AppendEvents != nil:
		n.Created, n.Unchanged = n.Created+1-int64(r.Duplicates), n.Unchanged+int64(r.Duplicates)
	case !r.Changed:
		n.Unchanged++
	case op.PutItem == nil && op.PutUser == nil:
		n.Deleted++
	case r.Created:
		n.Created++
	default:
		n.Replaced++
	}
}

func (s *serverSink) items(ctx context.Context) (int64, error) {
	var a struct {
		Items int64 `json:"items"`
	}
	return a.Items, s.call(ctx, http.MethodGet, "/v1/catalog", nil, &a)
}

func (s *serverSink) preview(ctx context.Context, kind string, lines []line, n *counts) ([]error, error) {
	return s.send(lines, n, func(body []byte) (*batchAnswer, error) {
		var a batchAnswer
		return &a, s.call(ctx, http.MethodPost, "/v1/"+kind+":check", bytes.NewReader(body), &a)
	})
}

// send sends the records without an error in batches, and counts what the server answers.
func (s *serverSink) send(lines []line, n *counts, post func(body []byte) (*batchAnswer, error)) ([]error, error) {
	problems := make([]error, len(lines))
	var at []int // index of each line sent
	var body bytes.Buffer
	flush := func() error {
		if len(at) == 0 {
			return nil
		}
		answer, err := post(body.Bytes())
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
		lines[i].encode(&body)
		if at = append(at, i); len(at) == sendLines {
			if err := flush(); err != nil {
				return nil, err
			}
		}
	}
	return problems, flush()
}

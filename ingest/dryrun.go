package ingest

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"hash/maphash"
	"net/http"

	"google.golang.org/protobuf/proto"

	"grebe/catalog"
	"grebe/internal/cli"
	"grebe/internal/human"
)

// dryRun reports what an import would do, and changes nothing.
func (c *Import) dryRun(w *cli.World, files []*source, dst sink) error {
	ids, left := newSeen(), &left{newSeen()}
	defer ids.close()
	defer left.close()
	bad, present, base := int64(0), int64(0), int64(0)
	var items []*source
	total, users, err := dst.stored(w.Ctx)
	if err != nil {
		return err
	}
	for _, src := range files {
		ids.next(src, base)
		j := &job{c: c, w: w, src: src, dst: dst, ids: ids, left: left, state: &importState{}}
		if c.LastWins {
			j.ids = nil
		}
		j.bar = newProgressBar(w, src, j.state)
		known := int64(0) // items of the file that the catalog has
		err := j.src.parts(w.Ctx, func(l *line) { j.prepare(l); left.sum(l) }, func(part *chunk) error {
			n, err := j.foresee(part)
			known += n.Replaced + n.Unchanged + n.Deleted
			return err
		})
		j.bar.done()
		if err != nil {
			return err
		}
		s := j.state
		fmt.Fprintf(w.Stdout, "%s: %s: %d new, %d changed, %d the same, %d deleted, %d bad\n", src.path,
			human.Count(s.total(), src.unit), s.Created, s.Replaced, s.Unchanged, s.Deleted, s.Failed)
		src.warnEmptied(w.Stdout, total, users)
		s.warn(w.Stdout, src)
		bad, base = bad+s.Failed, base+s.Line
		if src.kind == kindItems {
			items, present = append(items, src), present+known
		}
	}
	if len(items) > 0 {
		if err := c.foretold(w, items, dst, present, total); err != nil {
			return err
		}
	}
	fmt.Fprintln(w.Stdout, "This was a dry run: nothing was changed.")
	if bad > 0 && !c.Skip {
		return fmt.Errorf("%s: correct the file, or let --on-error skip pass over such records",
			human.Count(bad, "bad record"))
	}
	return nil
}

// foretold reports what the items would do to the catalog as a whole and to the models. The catalog has total items, of
// which present are in the files.
func (c *Import) foretold(w *cli.World, items []*source, dst sink, present, total int64) error {
	if left := total - present; left > 0 {
		fmt.Fprintf(w.Stdout, "%s not in the files, of %d in the catalog: an import keeps what it does not name.\n",
			human.Are(left, "item"), total)
	}
	impacts, err := dst.forecast(w.Ctx, items)
	if err != nil {
		return err
	}
	for _, m := range impacts {
		fmt.Fprintf(w.Stdout, "Model %q can generate %s, and could generate %d.\n", m.Model, human.Count(m.Before, "item"),
			m.After)
		if text := m.Warning(); text != "" {
			fmt.Fprintln(w.Stdout, "Warning: "+text)
		}
	}
	return nil
}

// foresee counts what a part of the file would change, and lists what is bad. It returns the outcomes of records that
// were compared with the catalog, not with earlier ones of the import.
func (j *job) foresee(part *chunk) (known counts, err error) {
	j.state.read, j.state.Line = part.read, part.endLine
	lines := j.fresh(part)
	var first []line // records of ids that did not come before
	var at []int     // where they are
	for i := range lines {
		if lines[i].err == nil && !j.left.again(&lines[i], &j.state.counts) {
			first, at = append(first, lines[i]), append(at, i)
		}
	}
	problems, err := j.dst.preview(j.w.Ctx, j.src.kind, first, &known)
	if err != nil {
		return known, err
	}
	j.state.plus(&known)
	for i, problem := range problems {
		lines[at[i]].err = problem
	}
	for i := range lines {
		if lines[i].err != nil {
			j.list(&lines[i])
			continue
		}
		j.state.empty(&lines[i])
	}
	j.bar.update()
	return known, j.unknown(lines)
}

// unknown counts the events of items that neither the import nor the destination has. These include events that were
// not compared with the destination.
func (j *job) unknown(lines []line) error {
	var events []line
	for i := range lines {
		if e := lines[i].op.AppendEvents; lines[i].err == nil && e != nil && !j.left.has(e.Events[0].Item) {
			events = append(events, lines[i])
		}
	}
	var n counts
	_, err := j.dst.preview(j.w.Ctx, j.src.kind, events, &n)
	j.state.Unknown.Merge(n.Unknown)
	return err
}

// plus adds counts.
func (n *counts) plus(m *counts) {
	n.Created, n.Replaced, n.Deleted = n.Created+m.Created, n.Replaced+m.Replaced, n.Deleted+m.Deleted
	n.Unchanged, n.Failed = n.Unchanged+m.Unchanged, n.Failed+m.Failed
}

// left knows what the records of a dry run would leave behind, by hashes: of each id whether it was put, and what.
type left struct{ *seen }

// withEvents is set in the hash of a user that is put with events.
const withEvents = 1

// sum sets the hash of what a record puts. It is safe for concurrent use.
func (f *left) sum(l *line) {
	var m proto.Message = l.op.PutItem
	switch {
	case l.op.PutUser != nil:
		m = l.op.PutUser
	case l.op.PutItem == nil:
		return
	}
	b, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
	if err != nil { // an import will say so
		return
	}
	l.sum = uint32(maphash.Bytes(f.seed, b))&^withEvents | 2 // never 0
	if len(l.op.PutUser.GetEvents()) > 0 {
		l.sum |= withEvents
	}
}

// has reports whether the import puts an item.
func (f *left) has(item string) bool {
	sum, put := f.find(f.hash(kindItems, item))
	return put && sum != 0
}

// again counts the outcome of a record whose id came before, and reports whether it did.
func (f *left) again(l *line, n *counts) bool {
	kind, id := kindItems, l.op.DeleteItem
	switch op := &l.op; {
	case op.PutItem != nil:
		id = op.PutItem.Id
	case op.PutUser != nil:
		kind, id = kindUsers, op.PutUser.Id
	case op.DeleteUser != "":
		kind, id = kindUsers, op.DeleteUser
	case op.AppendEvents != nil:
		kind, id = kindEvents, op.AppendEvents.Id+"\x00"+op.AppendEvents.Events[0].Id
	}
	before, ok := f.swap(f.hash(kind, id), l.sum)
	if kind == kindEvents && !ok {
		if user, put := f.find(f.hash(kindUsers, l.op.AppendEvents.Id)); put && user&withEvents == 0 {
			n.Created++ // whatever events the catalog has of the user are gone by then
			return true
		}
	}
	put := l.op.PutItem != nil || l.op.PutUser != nil
	switch {
	case !ok:
		return false
	case kind == kindEvents || before == l.sum:
		n.Unchanged++
	case !put:
		n.Deleted++
	case before == 0:
		n.Created++
	default:
		n.Replaced++
	}
	return true
}

func (s *localSink) stored(context.Context) (items, users int64, err error) {
	n := s.c.Stats()
	return int64(n.Items), int64(n.Users), nil
}

func (s *localSink) preview(_ context.Context, _ string, lines []line, n *counts) ([]error, error) {
	ops, at := goodOps(lines)
	problems := make([]error, len(lines))
	for i, r := range s.c.Preview(ops) {
		n.add(&ops[i], &r)
		s.unknown(n, &ops[i], &r)
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

func (s *serverSink) stored(ctx context.Context) (items, users int64, err error) {
	var a struct {
		Items int64 `json:"items"`
		Users int64 `json:"users"`
	}
	err = s.call(ctx, http.MethodGet, "/v1/catalog", nil, &a)
	return a.Items, a.Users, err
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
		for _, text := range answer.Warnings { // those about models were part of the forecast
			if u, ok := catalog.ReadWarning(text); ok {
				n.Unknown.Merge(u)
			}
		}
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

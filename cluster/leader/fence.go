package leader

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"strconv"

	"grebe/cluster/coord"
)

var (
	// ErrFenced reports that a process of a later term has the object: this one leads no more.
	ErrFenced = errors.New("leader: a later term has the object")
	// ErrNotLeading reports that the term is over by this process's clock.
	ErrNotLeading = errors.New("leader: the term is over")
)

// Fenced is the value of an object that only leaders write.
type Fenced struct {
	Term int64 // of the leader that wrote it, or claimed it since
	Data []byte
}

// Encode returns the value's bytes: "term 7", a line feed, and the data.
func (f Fenced) Encode() []byte { return append(fmt.Appendf(nil, "term %d\n", f.Term), f.Data...) }

// Decode reads a value.
func Decode(b []byte) (Fenced, error) {
	head, data, ok := bytes.Cut(b, []byte("\n"))
	term, err := strconv.ParseInt(string(bytes.TrimPrefix(head, []byte("term "))), 10, 64)
	if !ok || !bytes.HasPrefix(head, []byte("term ")) || err != nil || term < 1 {
		return Fenced{}, fmt.Errorf("leader: %.40q does not begin with its term", b)
	}
	return Fenced{Term: term, Data: data}, nil
}

// Object is a fenced object that a leader has claimed. It is not safe for concurrent use.
type Object struct {
	t       *Term
	key     string
	version int64
	data    []byte
	unsure  bool // the last write was not answered
}

// Claim makes an object this term's: from then on, writes of earlier terms fail. An absent one is created, without
// data. A leader MUST claim an object before it acts on its content, and MUST NOT delete it: its term would be lost.
func (t *Term) Claim(ctx context.Context, key string) (*Object, error) {
	o := &Object{t: t, key: key}
	for {
		if !t.Leading() {
			return nil, ErrNotLeading
		}
		f, err := o.read(ctx)
		if err != nil {
			return nil, err
		}
		if f.Term == t.Number {
			return o, nil // an earlier attempt was not answered
		}
		version, err := t.c.Swap(ctx, key, Fenced{t.Number, f.Data}.Encode(), o.version, nil)
		if errors.Is(err, coord.ErrConflict) {
			continue
		}
		if err != nil {
			return nil, err
		}
		o.version = version
		return o, nil
	}
}

// read takes the object's value and version. It returns ErrFenced if that is of a later term.
func (o *Object) read(ctx context.Context) (Fenced, error) {
	e, err := o.t.c.Get(ctx, o.key)
	if err != nil {
		return Fenced{}, err
	}
	var f Fenced
	if e.Version != 0 {
		if f, err = Decode(e.Data); err != nil {
			return Fenced{}, fmt.Errorf("%s: %w", o.key, err)
		}
	}
	if f.Term > o.t.Number {
		o.t.found(f.Term)
		return f, fmt.Errorf("%w: %s has term %d, this is %d", ErrFenced, o.key, f.Term, o.t.Number)
	}
	o.version, o.data = e.Version, f.Data
	return f, nil
}

// Data returns the content, as it was claimed or last written. It must not be changed.
func (o *Object) Data() []byte { return o.data }

// Write replaces the content. It returns ErrFenced or ErrNotLeading if this process leads no more; or ErrUnavailable:
// the content may have been written, or may be written later.
func (o *Object) Write(ctx context.Context, data []byte) error {
	if !o.t.Leading() {
		return ErrNotLeading
	}
	if o.unsure {
		f, err := o.read(ctx)
		if err != nil {
			return err
		}
		if f.Term != o.t.Number {
			return fmt.Errorf("%w: %s went back to term %d", ErrFenced, o.key, f.Term)
		}
		o.unsure = false
	}
	version, err := o.t.c.Swap(ctx, o.key, Fenced{o.t.Number, data}.Encode(), o.version, nil)
	switch {
	case err == nil:
		o.version, o.data = version, data
		return nil
	case errors.Is(err, coord.ErrConflict):
		return fmt.Errorf("%w: %s has changed", ErrFenced, o.key)
	case errors.Is(err, coord.ErrUnavailable):
		o.unsure = true
	}
	return err
}

// Reader reads fenced objects and ignores values of lower terms than it has seen. The zero value is ready. It is not
// safe for concurrent use.
type Reader struct{ terms map[string]int64 }

// Accept returns an entry's value. It returns false for one of a lower term than the reader has seen under this key.
func (r *Reader) Accept(e coord.Entry) (Fenced, bool, error) {
	f, err := Decode(e.Data)
	if err != nil {
		return Fenced{}, false, fmt.Errorf("%s: %w", e.Key, err)
	}
	if f.Term < r.terms[e.Key] {
		return Fenced{}, false, nil
	}
	if r.terms == nil {
		r.terms = map[string]int64{}
	}
	r.terms[e.Key] = f.Term
	return f, true, nil
}

package serving

import (
	"bufio"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"sync"
	"time"

	"grebe/compute"
	"grebe/model/hstu"
	"grebe/model/hstu/hstutest"
	"grebe/model/safetensors"
	"grebe/workload"
)

// eventModels are the models of events that Make writes.
var eventModels = map[string]struct {
	spec   hstutest.Spec
	events int // of each user
}{
	"hstu-tiny":    {hstutest.Spec{Hidden: 32, Layers: 1, Heads: 2, HeadDim: 16}, 300},
	"hstu-6x15000": {hstutest.Spec{Hidden: 512, Layers: 6, Heads: 8, HeadDim: 64}, 15_000},
}

// known lists the models that Make writes.
func known() []string {
	return append(slices.Sorted(maps.Keys(shapes)), slices.Sorted(maps.Keys(eventModels))...)
}

// Send says how the new events of a request get to the server.
type Send string

const (
	SendNew    Send = "new"    // in the request, beside the user's id
	SendAppend Send = "append" // by a request of their own ahead of it, which stores them
	SendWhole  Send = "whole"  // in the request, behind all stored ones
)

const (
	firstEvent   = 1_600_000_000 // time of a user's first event, in seconds
	betweenEvent = 600
	newEvent     = 1_800_000_000 // time of all new ones, so that each is the latest when it comes
	actions      = 8             // of actions
)

// history draws the stored events of users. They are the same for every seed: Make writes them, and requests have them.
type history struct {
	events int
	items  *workload.Zipf
}

func newHistory(events, items int) *history {
	return &history{events: events, items: workload.NewZipf(items, 1, 1.05)}
}

// of appends the events of a user to b, as JSON without brackets.
func (h *history) of(b []byte, user int) []byte {
	r := rand.New(rand.NewPCG(1<<20, uint64(user)))
	for i := range h.events {
		b = h.event(b, r, firstEvent+int64(i)*betweenEvent, i == 0)
	}
	return b
}

// event appends an event.
func (h *history) event(b []byte, r *rand.Rand, at int64, first bool) []byte {
	if !first {
		b = append(b, ',')
	}
	b = append(b, `{"item":"i`...)
	b = strconv.AppendInt(b, int64(h.items.Draw(r)), 10)
	b = append(b, `","time":`...)
	b = strconv.AppendInt(b, at, 10)
	b = append(b, `,"action":`...)
	return append(strconv.AppendInt(b, int64(r.IntN(actions)), 10), '}')
}

// fresh appends n new events.
func (h *history) fresh(b []byte, r *rand.Rand, n int) []byte {
	for i := range n {
		b = h.event(b, r, newEvent, i == 0)
	}
	return b
}

// makeEvents is Make for a model of events.
func (f *Files) makeEvents(dir string) (string, error) {
	m := eventModels[f.Shape]
	if f.Events > 0 {
		m.events = f.Events
	}
	folder := filepath.Join(dir, f.Shape)
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return "", err
	}
	m.spec.Items, m.spec.DType, m.spec.Seed = f.Items, compute.BF16, f.Seed
	m.spec.MaxSeqLen = m.events + m.events/2 + 1000 // for events that are appended
	m.spec.Change = func(c *hstu.Config) {
		c.Retrieval, c.TaskMLP = false, 512
		for n := range f.Features {
			c.Content = append(c.Content,
				hstu.ContentFeature{Name: feature(n), Table: feature(n), Rows: f.Items, Dim: m.spec.Hidden})
		}
	}
	if err := hstutest.Write(folder, m.spec); err != nil {
		return "", err
	}
	err := lines(filepath.Join(dir, "items.ndjson"), f.Items, f.itemOfEvents)
	if err == nil {
		err = writeUsers(filepath.Join(dir, "users.ndjson"), f.Users, newHistory(m.events, f.Items))
	}
	if err != nil {
		return "", err
	}
	text := fmt.Appendf(nil, `models:
  - name: %[1]s
    path: ./%[1]s
    device_memory: %[2]s
`, f.Shape, f.Memory)
	if f.DeviceRows != "" {
		more, err := f.outside(dir, folder, m.spec.Hidden)
		if err != nil {
			return "", err
		}
		text = append(text, more...)
	}
	name := filepath.Join(dir, configFile)
	return name, os.WriteFile(name, append(text, settings(max(16_384, m.spec.MaxSeqLen))...), 0o600)
}

func feature(n int) string { return fmt.Sprint("feature", n) }

// itemOfEvents is item i of the catalog. The row of a feature is another one for each item, so that rows of features
// are as popular as items are.
func (f *Files) itemOfEvents(i int) any {
	item := map[string]any{"id": fmt.Sprint("i", i)}
	if f.Features > 0 {
		ids := map[string]any{}
		for n := range f.Features {
			ids[feature(n)] = []string{strconv.Itoa((i + (n+1)*f.Items/(f.Features+1)) % f.Items)}
		}
		item["attributes"] = ids
	}
	return item
}

// outside writes the rows of a checkpoint's tables to files, and returns the lines of the configuration that have the
// model read them there.
func (f *Files) outside(dir, checkpoint string, dim int) ([]byte, error) {
	weights, err := safetensors.Open(checkpoint)
	if err != nil {
		return nil, err
	}
	defer weights.Close()
	tables := fmt.Appendf(nil, "tables:\n")
	add := func(name, tensor string) error {
		rows, err := weights.Tensor("_embedding_collection.embeddings." + tensor + ".weight")
		if err != nil {
			return err
		}
		tables = fmt.Appendf(tables, "  - {name: %[1]s, dim: %[2]d, format: bf16, store: file, file: %[1]s.bf16}\n", name,
			dim)
		return os.WriteFile(filepath.Join(dir, name+".bf16"), rows.Data, 0o600)
	}
	model := fmt.Appendf(nil, "    item_table: items\n    device_rows: %s\n", f.DeviceRows)
	if err := add("items", "item_id"); err != nil {
		return nil, err
	}
	if f.Features > 0 {
		model = append(model, "    tables:\n"...)
	}
	for n := range f.Features {
		model = fmt.Appendf(model, "      - {name: %[1]s, table: %[1]s, device_rows: %[2]s}\n", feature(n), f.DeviceRows)
		if err := add(feature(n), feature(n)); err != nil {
			return nil, err
		}
	}
	return append(model, tables...), nil
}

func writeUsers(name string, n int, h *history) (err error) {
	file, err := os.Create(name)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	w := bufio.NewWriterSize(file, 1<<20)
	var b []byte
	for u := range n {
		b = fmt.Appendf(b[:0], `{"id":%q,"events":[`, userID(u))
		b = append(h.of(b, u), "]}\n"...)
		if _, err := w.Write(b); err != nil {
			return err
		}
	}
	return w.Flush()
}

// stored are the events of users for requests that have all of them, written once per user.
type stored struct {
	mu     sync.Mutex
	byUser map[int][]byte
}

func (s *stored) of(h *history, user int) []byte {
	s.mu.Lock()
	defer s.mu.Unlock()
	b, ok := s.byUser[user]
	if !ok {
		if s.byUser == nil {
			s.byUser = map[int][]byte{}
		}
		b = h.of(nil, user)
		s.byUser[user] = b
	}
	return b
}

// eventsBody begins the body of request i, for a user with new events, and returns the path and body of the request
// that comes ahead of it, if any.
func (c *client) eventsBody(model string, r *rand.Rand, deadline time.Duration) (body []byte, path string,
	ahead []byte) {
	u := c.users.Draw(r)
	fresh := c.history.fresh(nil, r, c.o.New)
	body = fmt.Appendf(nil, `{%s"user":{"id":%q`, model, userID(u))
	switch c.o.Send {
	case SendAppend:
		path, ahead = "/v1/users/"+userID(u)+"/events", fmt.Appendf(nil, `{"events":[%s]}`, fresh)
	case SendWhole:
		body = append(body, `,"events":[`...)
		body = append(append(append(body, c.stored.of(c.history, u)...), ','), fresh...)
		body = append(body, ']')
	default:
		body = append(append(append(body, `,"new_events":[`...), fresh...), ']')
	}
	return fmt.Appendf(body, `},"deadline_ms":%d`, deadline.Milliseconds()), path, ahead
}

// checkStatus returns an error for an answer that is not one of those wanted.
func checkStatus(got int, text []byte, want ...int) error {
	if slices.Contains(want, got) {
		return nil
	}
	return &refused{got, text}
}

// created are the answers to events that were appended.
var created = []int{http.StatusOK, http.StatusCreated}

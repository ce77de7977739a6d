// Package batch keeps jobs: files of requests that are answered one after the other, in order, in the time that other
// requests leave.
//
// A job is three files: its requests, its results and its state. A request has one line of results, an error if it
// cannot be answered. So the number of whole lines of results is how far a job is, and a process that was killed goes
// on there. One job runs at a time, the oldest first.
//
// Jobs is safe for concurrent use. Its lock is not held while files are read or written, except to create a state.
package batch

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"time"

	"grebe/internal/durable"
)

// States of a job.
const (
	Waiting  = "waiting"
	Running  = "running"
	Done     = "done"
	Canceled = "canceled"
)

var (
	// ErrNone reports that there is no such job.
	ErrNone = errors.New("no such batch")
	// ErrFull reports that there are too many jobs that have not ended.
	ErrFull = errors.New("too many batches wait")
	// ErrLarge reports too many bytes of requests.
	ErrLarge = errors.New("the batch is too large")
	// ErrID reports an id that no job can have.
	ErrID = errors.New("want an id of 16 to 64 letters and digits")
	// ErrRuns reports that a job has not ended.
	ErrRuns = errors.New("the batch has not ended")
	// ErrComing reports that the requests of a job with that id are being received.
	ErrComing = errors.New("another call sends this batch")
)

// Options of Jobs. Zero means the default that the comment gives last.
type Options struct {
	Dir      string // folder of the files
	MaxJobs  int    // that have not ended; 16
	MaxKept  int    // jobs in all: those that ended first are removed; 64
	MaxBytes int64  // requests of a job; 1 GiB
	// Answer answers a request of an operation in idle time. The result is one line of JSON, also for a bad request. An
	// error ends the attempt: the request is answered again when the process is started again. An empty line stands for
	// one that was too long.
	Answer func(ctx context.Context, op string, line []byte) ([]byte, error)
	Log    *slog.Logger // nothing is logged
}

// Job describes a job.
type Job struct {
	ID      string    `json:"id"`
	Op      string    `json:"op"`
	State   string    `json:"state"`
	Lines   int64     `json:"lines"`
	Done    int64     `json:"done"`
	Created time.Time `json:"created"`
	Error   string    `json:"error,omitempty"` // why it does not go on
}

// Ended reports whether the job has all the results that it will have.
func (j *Job) Ended() bool { return j.State == Done || j.State == Canceled }

// Jobs are the jobs of a folder.
type Jobs struct {
	opt Options

	mu     sync.Mutex
	all    map[string]*Job
	run    *Job // the one that runs
	cancel context.CancelFunc
	adding map[string]bool // ids of jobs whose requests are being received
	wake   chan struct{}   // holds a value if a job was added
}

var ids = regexp.MustCompile(`^[A-Za-z0-9]{16,64}$`)

// Open reads the jobs of a folder. Run works on them.
func Open(opt Options) (*Jobs, error) {
	opt.MaxJobs, opt.MaxKept, opt.MaxBytes = cmp.Or(opt.MaxJobs, 16), cmp.Or(opt.MaxKept, 64), cmp.Or(opt.MaxBytes, 1<<30)
	opt.Log = cmp.Or(opt.Log, slog.New(slog.DiscardHandler))
	b := &Jobs{opt: opt, all: map[string]*Job{}, adding: map[string]bool{}, wake: make(chan struct{}, 1)}
	if err := durable.RemoveParts(opt.Dir); err != nil {
		return nil, fmt.Errorf("batch: %w", err)
	}
	entries, err := os.ReadDir(opt.Dir)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("batch: %w", err)
	}
	for _, e := range entries {
		id, ok := strings.CutSuffix(e.Name(), ".json")
		if !ok {
			continue
		}
		j := new(Job)
		data, err := os.ReadFile(filepath.Join(opt.Dir, e.Name()))
		if err == nil {
			err = json.Unmarshal(data, j)
		}
		if err == nil && j.ID != id {
			err = errors.New("it has another id")
		}
		if err != nil {
			return nil, fmt.Errorf("batch: the job in %s is damaged (%w): remove it", filepath.Join(opt.Dir, e.Name()), err)
		}
		if j.State == Running {
			j.State = Waiting
		}
		b.all[id] = j
	}
	for _, e := range entries { // requests of a job that was not created to its end
		if id, _, _ := strings.Cut(e.Name(), "."); b.all[id] == nil && ids.MatchString(id) {
			if err := durable.Remove(filepath.Join(opt.Dir, e.Name())); err != nil {
				return nil, fmt.Errorf("batch: %w", err)
			}
		}
	}
	return b, nil
}

func (b *Jobs) file(id, kind string) string { return filepath.Join(b.opt.Dir, id+"."+kind) }

// Get returns a job.
func (b *Jobs) Get(id string) (Job, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if j := b.all[id]; j != nil {
		return *j, nil
	}
	return Job{}, ErrNone
}

// Add creates a job. receive calls add with each request; the lines have no newline. A job of that id stays as it is
// and is returned, so that a client can repeat a call.
func (b *Jobs) Add(id, op string, receive func(add func(line []byte) error) error) (Job, error) {
	if !ids.MatchString(id) {
		return Job{}, ErrID
	}
	b.mu.Lock()
	if j := b.all[id]; j != nil {
		defer b.mu.Unlock()
		return *j, nil
	}
	if b.adding[id] {
		b.mu.Unlock()
		return Job{}, ErrComing
	}
	if len(b.adding)+b.unended() >= b.opt.MaxJobs {
		b.mu.Unlock()
		return Job{}, ErrFull
	}
	b.adding[id] = true
	b.mu.Unlock()
	j := &Job{ID: id, Op: op, State: Waiting, Created: time.Now().UTC().Truncate(time.Millisecond)}
	err := b.receive(j, receive)
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.adding, id)
	if err != nil {
		return Job{}, err
	}
	if err := b.save(j); err != nil {
		return Job{}, err
	}
	b.all[id] = j
	b.forget()
	select {
	case b.wake <- struct{}{}:
	default:
	}
	return *j, nil
}

func (b *Jobs) unended() (n int) {
	for _, j := range b.all {
		if !j.Ended() {
			n++
		}
	}
	return n
}

// receive writes the requests of a job.
func (b *Jobs) receive(j *Job, receive func(add func(line []byte) error) error) error {
	if err := durable.MkdirAll(b.opt.Dir); err != nil {
		return err
	}
	bytes := int64(0)
	return durable.WriteFile(b.file(j.ID, "requests"), func(w io.Writer) error {
		return receive(func(line []byte) error {
			if bytes += int64(len(line)) + 1; bytes > b.opt.MaxBytes {
				return fmt.Errorf("%w: more than %d bytes", ErrLarge, b.opt.MaxBytes)
			}
			j.Lines++
			_, err := w.Write(append(line[:len(line):len(line)], '\n'))
			return err
		})
	})
}

// save stores the state of a job.
func (b *Jobs) save(j *Job) error {
	data, err := json.Marshal(j)
	if err != nil {
		return err
	}
	return durable.WriteFile(b.file(j.ID, "json"), func(w io.Writer) error {
		_, err := w.Write(data)
		return err
	})
}

// forget removes the oldest jobs that have ended while there are too many. It is called with mu held.
func (b *Jobs) forget() {
	var ended []*Job
	for _, j := range b.all {
		if j.Ended() {
			ended = append(ended, j)
		}
	}
	slices.SortFunc(ended, older)
	for len(b.all) > b.opt.MaxKept && len(ended) > 0 {
		j := ended[0]
		ended = ended[1:]
		delete(b.all, j.ID)
		for _, kind := range []string{"json", "requests", "results"} { // without the state the others are leftovers
			if err := durable.Remove(b.file(j.ID, kind)); err != nil {
				b.opt.Log.Error("an old batch cannot be removed", "error", err)
			}
		}
	}
}

func older(a, b *Job) int {
	return cmp.Or(a.Created.Compare(b.Created), strings.Compare(a.ID, b.ID))
}

// Cancel ends a job. Its results so far stay.
func (b *Jobs) Cancel(id string) (Job, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	j := b.all[id]
	if j == nil {
		return Job{}, ErrNone
	}
	if j.Ended() {
		return *j, nil
	}
	next := *j
	next.State = Canceled
	if err := b.save(&next); err != nil {
		return Job{}, err
	}
	j.State = Canceled
	if b.run == j {
		b.cancel()
	}
	return *j, nil
}

// Ready returns a job whose results can be read, or ErrRuns.
func (b *Jobs) Ready(id string) (Job, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	j := b.all[id]
	switch {
	case j == nil:
		return Job{}, ErrNone
	case !j.Ended() || b.run == j:
		return Job{}, ErrRuns
	}
	return *j, nil
}

// Results opens the results of a job that has ended. The caller MUST Close it.
func (b *Jobs) Results(id string) (io.ReadCloser, error) {
	if _, err := b.Ready(id); err != nil {
		return nil, err
	}
	f, err := os.Open(b.file(id, "results"))
	if errors.Is(err, fs.ErrNotExist) { // it was canceled before it began
		return io.NopCloser(bytes.NewReader(nil)), nil
	}
	return f, err
}

// Run works on jobs until ctx ends.
func (b *Jobs) Run(ctx context.Context) {
	for ctx.Err() == nil {
		j, within := b.next(ctx)
		if j == nil {
			select {
			case <-b.wake:
			case <-ctx.Done():
			}
			continue
		}
		err := b.work(within, j)
		b.mu.Lock()
		b.cancel()
		b.run = nil
		switch {
		case j.State == Canceled || ctx.Err() != nil: // the state is on disk, or the next process goes on
			err = nil
		case err != nil:
			j.State, j.Error = Canceled, err.Error()
			b.opt.Log.Error("a batch cannot continue", "id", j.ID, "error", err)
			err = b.save(j)
		default:
			j.State = Done
			err = b.save(j)
		}
		if err != nil {
			b.opt.Log.Error("the state of a batch cannot be stored", "id", j.ID, "error", err)
		}
		b.mu.Unlock()
	}
}

// next takes the oldest job that waits.
func (b *Jobs) next(ctx context.Context) (*Job, context.Context) {
	b.mu.Lock()
	defer b.mu.Unlock()
	var first *Job
	for _, j := range b.all {
		if j.State == Waiting && (first == nil || older(j, first) < 0) {
			first = j
		}
	}
	if first == nil {
		return nil, nil
	}
	first.State, b.run = Running, first
	within, cancel := context.WithCancel(ctx)
	b.cancel = cancel
	return first, within
}

// syncEvery is how many results are made durable together.
const syncEvery = 64

// work answers the requests of a job that have no result yet.
func (b *Jobs) work(ctx context.Context, j *Job) error {
	in, err := os.Open(b.file(j.ID, "requests"))
	if err != nil {
		return err
	}
	defer in.Close()
	done, size, err := wholeLines(b.file(j.ID, "results"))
	if err != nil {
		return err
	}
	out, err := durable.OpenFile(b.file(j.ID, "results"), false)
	if err != nil {
		return err
	}
	defer out.Close()
	if err := errors.Join(out.Truncate(size), durable.SyncDir(b.opt.Dir)); err != nil {
		return err
	}
	b.report(j, done)
	r := bufio.NewReaderSize(in, 1<<16)
	for n := int64(0); ; n++ {
		line, err := r.ReadBytes('\n')
		if errors.Is(err, io.EOF) {
			return out.Sync()
		}
		if err != nil {
			return err
		}
		if n < done {
			continue
		}
		answer, err := b.opt.Answer(ctx, j.Op, bytes.TrimSuffix(line, []byte{'\n'}))
		if err != nil {
			return errors.Join(err, out.Sync())
		}
		k, err := out.WriteAt(append(bytes.TrimSpace(answer), '\n'), size)
		if err != nil {
			return err
		}
		if size += int64(k); n%syncEvery == 0 {
			if err := out.Sync(); err != nil {
				return err
			}
		}
		b.report(j, n+1)
	}
}

func (b *Jobs) report(j *Job, done int64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	j.Done = done
}

// wholeLines returns the number of lines of a file that end with a newline, and their bytes.
func wholeLines(name string) (lines, size int64, err error) {
	f, err := os.Open(name)
	if errors.Is(err, fs.ErrNotExist) {
		return 0, 0, nil
	}
	if err != nil {
		return 0, 0, err
	}
	defer f.Close()
	r := bufio.NewReaderSize(f, 1<<16)
	for {
		line, err := r.ReadBytes('\n')
		if errors.Is(err, io.EOF) {
			return lines, size, nil
		}
		if err != nil {
			return 0, 0, err
		}
		lines, size = lines+1, size+int64(len(line))
	}
}

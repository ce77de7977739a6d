package server

import (
	"bytes"
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"net/url"
	"time"

	"grebe/internal/wire"
	"grebe/serve"
	"grebe/server/batch"
	"grebe/server/guard"
)

// resultsRoute is /v1/batches/{id}/results.
var resultsRoute = &route{op: "batches", role: guard.Serve, methods: map[string]handler{"GET": (*Server).getResults}}

func (s *Server) jobs() (*batch.Jobs, error) {
	if s.batches == nil {
		return nil, serve.Errorf(serve.NotFound, "", "this server takes no batches: it has no data_dir, or computes nothing")
	}
	return s.batches, nil
}

// openBatches opens the jobs of the folder that the configuration names.
func (s *Server) openBatches() (err error) {
	if s.cfg.BatchDir == "" {
		return nil
	}
	s.batches, err = batch.Open(batch.Options{Dir: s.cfg.BatchDir, MaxBytes: s.cfg.MaxBatch, Answer: s.answerLine,
		Log: s.log})
	return err
}

// runBatches works on jobs until end is called.
func (s *Server) runBatches() (end func()) {
	if s.batches == nil {
		return func() {}
	}
	ctx, cancel := context.WithCancel(s.cut)
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.batches.Run(ctx)
	}()
	return func() {
		cancel()
		<-done
	}
}

// postBatches creates a job of the requests in the body, one per line. ?op is rank or recommend. A client that gives
// ?id can repeat the call.
func (s *Server) postBatches(r *http.Request, _ string) (reply, error) {
	jobs, err := s.jobs()
	if err != nil {
		return reply{}, err
	}
	q, err := url.ParseQuery(r.URL.RawQuery)
	if err != nil {
		return reply{}, serve.Errorf(serve.InvalidArgument, "", "the query cannot be read: %v", err)
	}
	op, id := q.Get("op"), q.Get("id")
	if op != "rank" && op != "recommend" {
		return reply{}, serve.Errorf(serve.InvalidArgument, "op", "%s in the query: want op=rank or op=recommend",
			serve.Quoted(op))
	}
	if !q.Has("id") {
		id = rand.Text()
	}
	j, err := jobs.Add(id, op, func(add func([]byte) error) error {
		return s.eachLine(r, func() int { return 0 }, func(line []byte, problem error) error {
			if problem != nil {
				return add(nil) // answered with an error in its place
			}
			if line = bytes.TrimSpace(line); len(line) == 0 {
				return nil
			}
			return add(line)
		})
	})
	rep, err := jobReply(j, err)
	rep.status = http.StatusAccepted
	return rep, err
}

func jobReply(j batch.Job, err error) (reply, error) {
	var own *serve.Error
	switch {
	case err == nil:
		return asJSON(j)
	case errors.Is(err, batch.ErrNone):
		return reply{}, serve.Errorf(serve.NotFound, "", "no such batch: it may have been removed, as the oldest are")
	case errors.Is(err, batch.ErrFull):
		return reply{}, serve.Errorf(serve.Exhausted, "", "%v: try again when one of them has ended", err)
	case errors.Is(err, batch.ErrLarge):
		return reply{}, serve.Errorf(serve.TooLarge, "", "%v: send several", err)
	case errors.Is(err, batch.ErrRuns):
		return reply{}, serve.Errorf(serve.Conflict, "", "the batch has not ended: GET /v1/batches/{id} says how far it is")
	case errors.Is(err, batch.ErrComing):
		return reply{}, serve.Errorf(serve.Conflict, "id", "%v: send it again when that call has ended", err)
	case errors.Is(err, batch.ErrID):
		return reply{}, serve.Errorf(serve.InvalidArgument, "id", "%v", err)
	case errors.As(err, &own):
		return reply{}, own
	}
	return reply{}, err
}

func (s *Server) getBatch(_ *http.Request, id string) (reply, error) {
	jobs, err := s.jobs()
	if err != nil {
		return reply{}, err
	}
	return jobReply(jobs.Get(id))
}

// deleteBatch cancels a job. Its results so far stay.
func (s *Server) deleteBatch(_ *http.Request, id string) (reply, error) {
	jobs, err := s.jobs()
	if err != nil {
		return reply{}, err
	}
	return jobReply(jobs.Cancel(id))
}

// getResults answers with the results of a job that has ended, one line per request.
func (s *Server) getResults(_ *http.Request, id string) (reply, error) {
	jobs, err := s.jobs()
	if err != nil {
		return reply{}, err
	}
	if _, err := jobReply(jobs.Ready(id)); err != nil {
		return reply{}, err
	}
	return reply{kind: "application/x-ndjson", stream: func(w io.Writer) error {
		in, err := jobs.Results(id)
		if err != nil {
			return err
		}
		defer in.Close()
		_, err = io.Copy(w, in)
		return err
	}}, nil
}

// A request of a batch that is shed is answered again after a while, up to batchTries times.
const (
	batchTries = 20
	batchPause = time.Second
)

// answerLine answers a request of a batch in idle time. Answers have no times, so that a job that is resumed ends with
// the results of one that is not. An error means that ctx has ended.
func (s *Server) answerLine(ctx context.Context, op string, line []byte) ([]byte, error) {
	ctx = serve.Forwarded(ctx) // this process answers: it knows its own idle time only
	var failed error
	for range batchTries {
		answer, err := s.tryLine(ctx, op, line)
		switch {
		case ctx.Err() != nil:
			return nil, ctx.Err()
		case err == nil:
			s.metrics.batches.WithLabelValues("answered").Inc()
			return answer, nil
		}
		failed = err
		if code := codeOf(asError(err)); code != serve.Exhausted && code != serve.Unavailable &&
			code != serve.DeadlineExceeded {
			break
		}
		select {
		case <-time.After(batchPause):
		case <-ctx.Done():
			return nil, ctx.Err()
		}
	}
	s.metrics.batches.WithLabelValues("failed").Inc()
	e := asError(failed)
	return wire.EncodeError(e.Code(), e.Error(), e.Field()), nil
}

func (s *Server) tryLine(ctx context.Context, op string, line []byte) (answer []byte, err error) {
	defer s.service.Rescue(op, &err)
	if len(line) == 0 {
		return nil, serve.Errorf(serve.TooLarge, "", "the line has more than %d bytes", s.cfg.MaxBody)
	}
	if op == "rank" {
		req, err := wire.DecodeRank(line)
		if err != nil {
			return nil, err
		}
		if req.DeadlineMs == 0 {
			req.DeadlineMs = s.service.LongestDeadline()
		}
		err = s.service.Idle(ctx, req.Model, func(ctx context.Context) error {
			resp, err := s.service.Rank(ctx, req)
			if err == nil {
				answer = wire.EncodeRank(resp)
			}
			return err
		})
		return trimmed(answer, req.RequestId, err)
	}
	req, err := wire.DecodeRecommend(line)
	if err != nil {
		return nil, err
	}
	if req.DeadlineMs == 0 {
		req.DeadlineMs = s.service.LongestDeadline()
	}
	err = s.service.Idle(ctx, req.Model, func(ctx context.Context) error {
		resp, err := s.service.Recommend(ctx, req)
		if err == nil {
			answer = wire.EncodeRecommend(resp)
		}
		return err
	})
	return trimmed(answer, req.RequestId, err)
}

// trimmed removes what differs between two answers to the same request.
func trimmed(answer []byte, id string, err error) ([]byte, error) {
	if err != nil {
		return nil, err
	}
	var fields map[string]json.RawMessage
	if err := json.Unmarshal(answer, &fields); err != nil {
		return nil, err
	}
	for _, name := range []string{"usage", "timing_ms", "node", "route", "parts", "prefix_reason"} {
		delete(fields, name)
	}
	if id == "" {
		delete(fields, "request_id")
	}
	return json.Marshal(fields)
}

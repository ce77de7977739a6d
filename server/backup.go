package server

import (
	"io"
	"net/http"
	"time"

	"grebe/serve"
)

// getBackup answers with a stream that package backup reads. One is written at a time.
func (s *Server) getBackup(r *http.Request, _ string) (reply, error) {
	if s.cfg.Backup == nil {
		return reply{}, serve.Errorf(serve.NotFound, "", "this server has nothing to back up")
	}
	if len(s.backup) > 0 {
		return reply{}, errBackup()
	}
	write, err := s.cfg.Backup(r.Context())
	if err != nil {
		return reply{}, err
	}
	return reply{kind: "application/octet-stream", stream: func(w io.Writer) error {
		select {
		case s.backup <- struct{}{}:
			defer func() { <-s.backup }()
		default:
			return errBackup()
		}
		return write(r.Context(), w)
	}}, nil
}

func errBackup() error {
	return serve.Errorf(serve.Conflict, "", "another backup of this server is being made: try again when it is done")
}

// streamPatience is how long a client may take to receive a part of a stream.
const streamPatience = time.Minute

// patientWriter gives a client some time for each part.
type patientWriter struct {
	w    io.Writer
	wait *http.ResponseController
}

func (p *patientWriter) Write(b []byte) (int, error) {
	if err := p.wait.SetWriteDeadline(time.Now().Add(streamPatience)); err != nil {
		return 0, err
	}
	return p.w.Write(b)
}

// writeStream sends a reply of any length. If it breaks off, the body ends early: the format of the body shows that.
func (s *Server) writeStream(w http.ResponseWriter, r *http.Request, rep reply) int {
	w.Header().Set("Content-Type", rep.kind)
	w.WriteHeader(rep.status)
	if r.Method == http.MethodHead {
		return rep.status
	}
	if err := rep.stream(&patientWriter{w, http.NewResponseController(w)}); err != nil {
		s.log.Error("a response was cut off", "error", err)
		return http.StatusInternalServerError
	}
	return rep.status
}

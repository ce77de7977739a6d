// Package drive starts a grebe binary, which may be an older one, and sends it seeded requests. It records the
// decisions of servers for replays (bench/replay) and gives others the same load.
//
// The server is a process of its own. It serves the demo's models and items, and users that are made from the seed.
package drive

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"grebe/internal/config"
)

// Setting is a key of the configuration and its value.
type Setting struct{ Key, Value string }

// Server is a grebe process that serves.
type Server struct {
	URL   string
	cmd   *exec.Cmd
	log   *bytes.Buffer
	ended chan error
}

// Start starts program on a configuration file with settings and variables of the environment, and waits until it is
// ready. The caller MUST Stop it.
func Start(ctx context.Context, program, file string, settings []Setting, env ...string) (*Server, error) {
	ln, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
	if err != nil {
		return nil, err
	}
	addr := ln.Addr().String()
	ln.Close()
	s := &Server{URL: "http://" + addr, log: &bytes.Buffer{}, ended: make(chan error, 1)}
	s.cmd = exec.CommandContext(ctx, program, "serve", "-c", file, "--log-level", "warn",
		"--listen", addr, "--admin-listen=", "--grpc-listen=")
	s.cmd.Env = append(environment(settings), env...)
	s.cmd.Stderr = s.log
	s.cmd.Cancel = func() error { return s.cmd.Process.Signal(os.Interrupt) }
	s.cmd.WaitDelay = 30 * time.Second
	if err := s.cmd.Start(); err != nil {
		return nil, fmt.Errorf("start %s: %w", program, err)
	}
	go func() { s.ended <- s.cmd.Wait() }()
	for {
		resp, err := http.Get(s.URL + "/readyz")
		if err == nil {
			resp.Body.Close()
			if resp.StatusCode == http.StatusOK {
				return s, nil
			}
		}
		select {
		case err := <-s.ended:
			return nil, fmt.Errorf("%s does not serve: %w: %s", program, errors.Join(errors.New("it ended"), err), s.log)
		case <-ctx.Done():
			<-s.ended
			return nil, ctx.Err()
		case <-time.After(50 * time.Millisecond):
		}
	}
}

// environment returns this process's own with settings for grebe, and no others.
func environment(settings []Setting) []string {
	var env []string
	for _, kv := range os.Environ() {
		if !strings.HasPrefix(kv, "GREBE_") {
			env = append(env, kv)
		}
	}
	for _, s := range settings {
		env = append(env, config.EnvName(s.Key)+"="+s.Value)
	}
	return env
}

// Stop ends the server and returns an error if it did not end well.
func (s *Server) Stop() error {
	_ = s.cmd.Process.Signal(os.Interrupt) // it may have ended already
	if err := <-s.ended; err != nil {
		return fmt.Errorf("the server ended: %w: %s", err, s.log)
	}
	return nil
}

// Index runs the command that prepares a data folder.
func Index(ctx context.Context, program, file string, settings []Setting, args ...string) error {
	cmd := exec.CommandContext(ctx, program, append([]string{"index", "-c", file, "--log-level", "warn"}, args...)...)
	cmd.Env = environment(settings)
	if out, err := cmd.CombinedOutput(); err != nil {
		return fmt.Errorf("%s index: %w: %s", filepath.Base(program), err, out)
	}
	return nil
}

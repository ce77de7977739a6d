// Package redisserver runs a redis-server of its own on the loopback interface, with nothing kept on disk unless asked to, for
// tests and benchmarks. Nothing that serves requests uses it.
package redisserver

import (
	"bytes"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"time"
)

// ErrAbsent says that no redis-server is installed.
var ErrAbsent = errors.New("redis-server is not installed (Debian: apt-get install redis-server)")

// Server is a running redis-server. The caller MUST Stop it.
type Server struct {
	Addr string

	dir  string
	args []string
	cmd  *exec.Cmd
	log  bytes.Buffer
}

// Start runs a server on a free port; args are further options of redis-server.
func Start(args ...string) (*Server, error) {
	port, err := freePort()
	if err != nil {
		return nil, fmt.Errorf("redisserver: find a port: %w", err)
	}
	dir, err := os.MkdirTemp("", "grebe-redis-")
	if err != nil {
		return nil, fmt.Errorf("redisserver: %w", err)
	}
	s := &Server{Addr: fmt.Sprintf("127.0.0.1:%d", port), dir: dir}
	s.args = append([]string{
		"--port", fmt.Sprint(port), "--bind", "127.0.0.1", "--dir", dir, "--save", "", "--appendonly", "no", "--daemonize", "no",
	}, args...)
	if err := s.Resume(); err != nil {
		os.RemoveAll(dir)
		return nil, err
	}
	return s, nil
}

func freePort() (int, error) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return 0, err
	}
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port, nil
}

// Resume starts a halted server again on its old port, with the rows that it kept on disk, if any.
func (s *Server) Resume() error {
	path, err := exec.LookPath("redis-server")
	if err != nil {
		return fmt.Errorf("redisserver: %w", ErrAbsent)
	}
	s.cmd = exec.Command(path, s.args...)
	s.log.Reset()
	s.cmd.Stdout, s.cmd.Stderr = &s.log, &s.log
	if err := s.cmd.Start(); err != nil {
		return fmt.Errorf("redisserver: start %s: %w", path, err)
	}
	return s.ready()
}

// ready waits until the server answers.
func (s *Server) ready() error {
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); time.Sleep(5 * time.Millisecond) {
		if s.Command("PING") == nil {
			return nil
		}
	}
	s.Halt()
	return fmt.Errorf("redisserver: no answer from %s: %s", s.Addr, s.log.String())
}

// Command sends one command and wants an answer that is no error.
func (s *Server) Command(words ...string) error {
	_, err := s.ask(words...)
	return err
}

// ask returns the beginning of the answer to a command.
func (s *Server) ask(words ...string) (string, error) {
	c, err := net.DialTimeout("tcp", s.Addr, time.Second)
	if err != nil {
		return "", err
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(5 * time.Second)); err != nil {
		return "", err
	}
	if _, err := fmt.Fprintf(c, "%s\r\n", strings.Join(words, " ")); err != nil {
		return "", err
	}
	answer := make([]byte, 512)
	n, err := c.Read(answer)
	if err != nil {
		return "", err
	}
	if answer[0] == '-' {
		return "", fmt.Errorf("redisserver: %s: %s", words[0], strings.TrimSpace(string(answer[1:n])))
	}
	return string(answer[:n]), nil
}

// Halt kills the server; its rows are lost. Resume starts it again.
func (s *Server) Halt() {
	if s.cmd == nil {
		return
	}
	s.cmd.Process.Kill()
	s.cmd.Wait()
	s.cmd = nil
}

// Freeze stops the server's process, or lets it go on: its connections stay open, and nobody answers.
func (s *Server) Freeze(stop bool) error {
	signal := syscall.SIGCONT
	if stop {
		signal = syscall.SIGSTOP
	}
	if err := s.cmd.Process.Signal(signal); err != nil {
		return fmt.Errorf("redisserver: %w", err)
	}
	return nil
}

// Stop kills the server and removes what it left.
func (s *Server) Stop() {
	s.Halt()
	os.RemoveAll(s.dir)
}

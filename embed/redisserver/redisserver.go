// Package redisserver runs a redis-server of its own on the loopback interface, with nothing kept on disk unless asked
// to, for tests and benchmarks. Nothing that serves requests uses it.
package redisserver

import (
	"bytes"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"os/exec"
	"strings"
	"sync/atomic"
	"syscall"
	"time"
)

// ErrAbsent says that no redis-server is installed.
var ErrAbsent = errors.New("redis-server is not installed (Debian: apt-get install redis-server)")

// Server is a running redis-server. The caller MUST Stop it.
type Server struct {
	Addr string

	dir   string
	args  []string
	cmd   *exec.Cmd
	ended chan struct{} // closed when the process has ended
	log   bytes.Buffer
}

// Start runs a server on a free port; args are further options of redis-server.
func Start(args ...string) (*Server, error) {
	for tries := 1; ; tries++ {
		s, err := start(args)
		if err == nil || tries == 5 || !strings.Contains(err.Error(), "in use") { // somebody was quicker
			return s, err
		}
	}
}

func start(args []string) (*Server, error) {
	port, err := freePort()
	if err != nil {
		return nil, err
	}
	dir, err := os.MkdirTemp("", "grebe-redis-")
	if err != nil {
		return nil, fmt.Errorf("redisserver: %w", err)
	}
	s := &Server{Addr: fmt.Sprintf("127.0.0.1:%d", port), dir: dir}
	s.args = append([]string{
		"--port", fmt.Sprint(port), "--bind", "127.0.0.1", "--dir", dir, "--save", "", "--appendonly", "no", "--daemonize",
		"no",
	}, args...)
	if err := s.Resume(); err != nil {
		os.RemoveAll(dir)
		return nil, err
	}
	return s, nil
}

// Ports are tried one after the other, from a random one. Each is given once.
var (
	firstPort = rand.Int64N(ports)
	nextPort  atomic.Int64
)

// The system gives ports from 32768 on to outgoing connections: one of those could take the port of a halted server.
const lowestPort, ports = 10000, 10000

// freePort returns a port that nobody uses and that the system does not give to others.
func freePort() (int, error) {
	for range 100 {
		l, err := net.Listen("tcp", fmt.Sprint("127.0.0.1:", lowestPort+(firstPort+nextPort.Add(1))%ports))
		if err == nil {
			defer l.Close()
			return l.Addr().(*net.TCPAddr).Port, nil
		}
	}
	return 0, errors.New("redisserver: no port is free")
}

// Resume starts a halted server again on its old port, with the rows that it kept on disk, if any.
func (s *Server) Resume() error {
	path, err := exec.LookPath("redis-server")
	if err != nil {
		return fmt.Errorf("redisserver: %w", ErrAbsent)
	}
	cmd, ended := exec.Command(path, s.args...), make(chan struct{})
	s.log.Reset()
	cmd.Stdout, cmd.Stderr = &s.log, &s.log
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("redisserver: start %s: %w", path, err)
	}
	go func() { // until the process ends; Halt waits for it
		cmd.Wait()
		close(ended)
	}()
	s.cmd, s.ended = cmd, ended
	return s.ready()
}

// ready waits until the server answers. An answer of another server on its port does not count.
func (s *Server) ready() error {
	for end := time.Now().Add(time.Minute); time.Now().Before(end); {
		if s.Command("PING") == nil {
			if dir, err := s.ask("CONFIG", "GET", "dir"); err == nil && strings.Contains(dir, s.dir) {
				return nil
			}
		}
		select {
		case <-s.ended:
			end = time.Now()
		case <-time.After(5 * time.Millisecond):
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
	<-s.ended
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

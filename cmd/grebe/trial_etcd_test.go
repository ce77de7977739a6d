package main

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"

	"grebe/cluster/coord/coordtest"
	"grebe/cluster/coord/embedded"
)

// etcdEnv makes the test binary an etcd server: a folder, an address and, for TLS, files of the certificate, the key
// and the authority, separated by commas. It ends when its standard input does.
const etcdEnv = "GREBE_TEST_ETCD"

// serveEtcd is the main function of such a process.
func serveEtcd(args string) int {
	part := strings.Split(args, ",")
	o := embedded.Options{Dir: part[0], Listen: part[1]}
	if len(part) == 5 {
		o.Cert, o.Key, o.CA = part[2], part[3], part[4]
	}
	s, err := embedded.Start(context.Background(), o)
	if err != nil {
		fmt.Println("error:", err)
		return 1
	}
	defer s.Close()
	fmt.Println(s.Addr())
	_, _ = io.Copy(io.Discard, os.Stdin)
	return 0
}

// etcdProcess is an etcd server in a process of its own.
type etcdProcess struct {
	t         *testing.T
	dir, addr string
	tls       []string // files; none: no TLS
	cmd       *exec.Cmd
}

// startEtcd starts an etcd server, which ends with the test. Files are those of its TLS.
func startEtcd(t *testing.T, files ...string) *etcdProcess {
	t.Helper()
	e := &etcdProcess{t: t, dir: coordtest.Dir(t), addr: freeAddress(t), tls: files}
	e.start()
	t.Cleanup(e.kill)
	return e
}

func (e *etcdProcess) start() {
	e.t.Helper()
	e.cmd = exec.Command(os.Args[0])
	e.cmd.Env = append(os.Environ(), etcdEnv+"="+strings.Join(append([]string{e.dir, e.addr}, e.tls...), ","))
	e.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	if _, err := e.cmd.StdinPipe(); err != nil { // open until the test ends
		e.t.Fatal(err)
	}
	out, err := e.cmd.StdoutPipe()
	if err != nil {
		e.t.Fatal(err)
	}
	if err := e.cmd.Start(); err != nil {
		e.t.Fatal(err)
	}
	if line, err := bufio.NewReader(out).ReadString('\n'); err != nil || strings.TrimSpace(line) != e.addr {
		e.t.Fatalf("etcd on %s says %q: %v", e.addr, line, err)
	}
}

func (e *etcdProcess) signal(s syscall.Signal) {
	if err := e.cmd.Process.Signal(s); err != nil {
		e.t.Error(err)
	}
}

func (e *etcdProcess) kill() {
	_ = e.cmd.Process.Kill()
	_ = e.cmd.Wait()
}

// Package databasetest starts real database servers for tests: MariaDB and PostgreSQL, each in a folder of its own that
// is removed afterwards. They listen on a Unix socket only. Tests are skipped where a server is not installed.
package databasetest

import (
	"bytes"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"syscall"
	"testing"
	"time"
)

// Server is a running database server. Its only user has the password Password.
type Server struct {
	URL      string // without a password
	Password string
}

// startWithin is how long a server may take to start.
const startWithin = 2 * time.Minute

// MariaDB starts a server with an empty database shop.
func MariaDB(t testing.TB) *Server {
	t.Helper()
	install, daemon, client := program(t, "mariadb-install-db"), program(t, "mariadbd", "/usr/sbin/mariadbd"),
		program(t, "mariadb")
	h := newHome(t, "mysql", "nobody")
	data, socket := filepath.Join(h.dir, "data"), filepath.Join(h.dir, "s")
	h.run(t, install, "--no-defaults", "--datadir="+data, "--auth-root-authentication-method=normal", "--skip-test-db",
		"--innodb-log-file-size=4M", "--innodb-buffer-pool-size=8M")
	h.start(t, daemon, syscall.SIGTERM, "--no-defaults", "--datadir="+data, "--socket="+socket,
		"--pid-file="+filepath.Join(h.dir, "pid"),
		"--skip-networking", "--innodb-log-file-size=4M", "--innodb-buffer-pool-size=8M",
		"--innodb-flush-log-at-trx-commit=0")
	s := &Server{URL: "mysql://shop@/shop?socket=" + socket, Password: "corr3ct-h0rse"}
	h.await(t, client, "--no-defaults", "--socket="+socket, "--user=root", "-e",
		"CREATE DATABASE shop CHARACTER SET utf8mb4; CREATE USER shop@localhost IDENTIFIED BY '"+s.Password+
			"'; GRANT ALL ON shop.* TO shop@localhost")
	return s
}

// Postgres starts a server with an empty database shop.
func Postgres(t testing.TB) *Server {
	t.Helper()
	found, err := filepath.Glob("/usr/lib/postgresql/*/bin")
	if err != nil {
		t.Fatal(err)
	}
	var initdb, daemon []string
	for _, dir := range slices.Backward(found) {
		initdb, daemon = append(initdb, filepath.Join(dir, "initdb")), append(daemon, filepath.Join(dir, "postgres"))
	}
	create, serve := program(t, "initdb", initdb...), program(t, "postgres", daemon...)
	client := program(t, "createdb")
	h := newHome(t, "postgres", "nobody")
	data := filepath.Join(h.dir, "data")
	s := &Server{URL: "postgres://shop@/shop?host=" + h.dir, Password: "corr3ct-h0rse"}
	file := filepath.Join(h.dir, "password")
	if err := os.WriteFile(file, []byte(s.Password), 0o644); err != nil {
		t.Fatal(err)
	}
	h.run(t, create, "-D", data, "-U", "shop", "-A", "scram-sha-256", "--pwfile="+file, "-E", "UTF8", "--locale=C",
		"--no-sync")
	// SIGINT ends a server without waiting for its clients.
	h.start(t, serve, syscall.SIGINT, "-D", data, "-k", h.dir, "-c", "listen_addresses=", "-c", "fsync=off", "-c",
		"shared_buffers=8MB")
	h.env = append(os.Environ(), "PGPASSWORD="+s.Password)
	h.await(t, client, "-h", h.dir, "-U", "shop", "shop")
	return s
}

// program finds a program on the PATH or at one of the places, or skips the test.
func program(t testing.TB, name string, places ...string) string {
	t.Helper()
	for _, p := range append([]string{name}, places...) {
		if path, err := exec.LookPath(p); err == nil {
			return path
		}
	}
	t.Skipf("%s is not installed (make databases)", name)
	return ""
}

// home is the folder of a server and the user whom it runs as.
type home struct {
	dir string
	as  *syscall.SysProcAttr
	env []string
}

// newHome makes a folder. Database servers refuse to run as root: then they run as the first of the users that exists.
func newHome(t testing.TB, users ...string) *home {
	t.Helper()
	dir, err := os.MkdirTemp("/tmp", "grebe-db-") // the path of a socket has at most 107 bytes
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = os.RemoveAll(dir) })
	h := &home{dir: dir, as: &syscall.SysProcAttr{}}
	if os.Getuid() != 0 {
		return h
	}
	for _, name := range users {
		u, err := user.Lookup(name)
		if err != nil {
			continue
		}
		uid, err1 := strconv.Atoi(u.Uid)
		gid, err2 := strconv.Atoi(u.Gid)
		if err1 != nil || err2 != nil {
			continue
		}
		if err := os.Chown(dir, uid, gid); err != nil {
			t.Skipf("the server must run as %s: %v", name, err)
		}
		h.as.Credential = &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}
		return h
	}
	t.Skipf("the server refuses to run as root, and there is none of the users %q", users)
	return nil
}

func (h *home) command(name string, args ...string) (*exec.Cmd, *bytes.Buffer) {
	cmd := exec.Command(name, args...)
	var out bytes.Buffer
	cmd.Dir, cmd.Env, cmd.SysProcAttr, cmd.Stdout, cmd.Stderr = h.dir, h.env, h.as, &out, &out
	return cmd, &out
}

// run runs a program to its end.
func (h *home) run(t testing.TB, name string, args ...string) {
	t.Helper()
	if cmd, out := h.command(name, args...); cmd.Run() != nil {
		t.Fatalf("%s failed:\n%s", name, out)
	}
}

// start starts a server, which ends with the test.
func (h *home) start(t testing.TB, name string, stop syscall.Signal, args ...string) {
	t.Helper()
	cmd, out := h.command(name, args...)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Signal(stop)
		if err := cmd.Wait(); err != nil && t.Failed() {
			t.Logf("%s: %v\n%s", name, err, out)
		}
	})
}

// await repeats a program until it succeeds.
func (h *home) await(t testing.TB, name string, args ...string) {
	t.Helper()
	last := ""
	for end := time.Now().Add(startWithin); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		cmd, out := h.command(name, args...)
		if cmd.Run() == nil {
			return
		}
		last = out.String()
	}
	t.Fatalf("%s still fails after %v: %s", name, startWithin, last)
}

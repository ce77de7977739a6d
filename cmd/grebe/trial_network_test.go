package main

import (
	"bufio"
	"flag"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"syscall"
	"testing"
)

// networkEnv is set in the process that inNetwork starts.
const networkEnv = "GREBE_TRIAL_NETWORK"

// inNetwork runs a test again in a process with a network of its own, which ends with it, and returns false. In that
// process it returns true. Without the right to make networks the test is skipped.
func inNetwork(t *testing.T) bool {
	t.Helper()
	if os.Getenv(networkEnv) != "" {
		return true
	}
	for _, tool := range []string{"ip", "tc", "nsenter"} {
		if _, err := exec.LookPath(tool); err != nil {
			t.Skipf("needs %s (Debian: iproute2 and util-linux): %v", tool, err)
		}
	}
	pattern := "^" + t.Name() + "$"
	if _, parts, ok := strings.Cut(flag.Lookup("test.run").Value.String(), "/"); ok {
		pattern += "/" + parts
	}
	cmd := exec.Command(os.Args[0], "-test.v", "-test.timeout", "0", "-test.run", pattern)
	cmd.Env = append(os.Environ(), networkEnv+"=1", "GREBE_BINARY="+binary)
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET, Pdeathsig: syscall.SIGKILL}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd.Stderr = cmd.Stdout
	if err := cmd.Start(); err != nil {
		t.Skipf("a process with a network of its own: %v", err)
	}
	skip := ""
	for lines := bufio.NewScanner(out); lines.Scan(); {
		t.Log(lines.Text())
		if strings.HasPrefix(lines.Text(), "--- SKIP") {
			skip = "skipped in a network of its own, see above"
		}
	}
	if err := cmd.Wait(); err != nil {
		t.Errorf("in a network of its own: %v", err)
	}
	if skip != "" {
		t.Skip(skip)
	}
	return false
}

// host is a network namespace for the processes of one machine. The test reaches it at addr.
type host struct {
	addr string
	pid  int // of a process that is in it
}

// sh runs a command that sets up the network. If it is not allowed here, the test is skipped with its output.
func sh(t *testing.T, command ...string) {
	t.Helper()
	if out, err := exec.Command(command[0], command[1:]...).CombinedOutput(); err != nil {
		t.Skipf("%s: %v: %s", strings.Join(command, " "), err, out)
	}
}

// hub is the address of the test for all hosts.
const hub = "10.78.0.1"

// startHub gives the test's own namespace its address.
func startHub(t *testing.T) {
	t.Helper()
	sh(t, "ip", "link", "set", "lo", "up")
	sh(t, "ip", "address", "add", hub+"/32", "dev", "lo")
}

// startHost makes a host with a fast link to the test.
func startHost(t *testing.T, n int) *host {
	t.Helper()
	cmd := exec.Command("sleep", "infinity")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET, Pdeathsig: syscall.SIGKILL}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		_ = cmd.Wait()
	})
	h := &host{addr: fmt.Sprintf("10.77.%d.2", n), pid: cmd.Process.Pid}
	here, card := fmt.Sprintf("10.77.%d.1", n), fmt.Sprint("host", n)
	sh(t, "ip", "link", "add", card, "type", "veth", "peer", "name", "test", "netns", fmt.Sprint(h.pid))
	sh(t, "ip", "address", "add", here+"/30", "dev", card)
	sh(t, "ip", "link", "set", card, "up")
	h.sh(t, "ip", "link", "set", "lo", "up")
	h.sh(t, "ip", "address", "add", h.addr+"/30", "dev", "test")
	h.sh(t, "ip", "link", "set", "test", "up")
	h.sh(t, "ip", "route", "add", "default", "via", here)
	return h
}

// within returns a command that runs on the host.
func (h *host) within(command ...string) []string {
	return append([]string{"nsenter", "-t", fmt.Sprint(h.pid), "-n"}, command...)
}

func (h *host) sh(t *testing.T, command ...string) {
	t.Helper()
	sh(t, h.within(command...)...)
}

// joinHosts joins two hosts and returns their addresses on it.
func joinHosts(t *testing.T, n int, a, b *host) (at, bt string) {
	t.Helper()
	sh(t, "ip", "link", "add", "wire", "netns", fmt.Sprint(a.pid), "type", "veth",
		"peer", "name", "wire", "netns", fmt.Sprint(b.pid))
	at, bt = fmt.Sprintf("10.79.%d.1", n), fmt.Sprintf("10.79.%d.2", n)
	for h, addr := range map[*host]string{a: at, b: bt} {
		h.sh(t, "ip", "address", "add", addr+"/30", "dev", "wire")
		h.sh(t, "ip", "link", "set", "wire", "up")
	}
	return at, bt
}

// limit bounds the rate at which a host sends over its wire. The burst is a millisecond's bytes, and at least a few
// packets.
func (h *host) limit(t *testing.T, mbit int) {
	t.Helper()
	h.sh(t, "tc", "qdisc", "replace", "dev", "wire", "root", "tbf", "rate", fmt.Sprintf("%dmbit", mbit),
		"burst", fmt.Sprint(max(16<<10, mbit*125)), "latency", "20ms")
}

package main

import (
	"bytes"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"grebe/cluster/mtls"
)

// Every command in the documents is run as it stands there: what is in a block marked sh, line by line, in a
// folder of the document's own. A line that ends with & runs until the document ends, and the
// next one waits until it answers. 127.0.0.1:8080 and other ports of this machine become free ones.
func TestCommandsInTheDocuments(t *testing.T) {
	docs, err := filepath.Glob("../../docs/*/*.md")
	if err != nil {
		t.Fatal(err)
	}
	ran := 0
	for _, doc := range append(docs, "../../README.md") {
		lines := documentCommands(t, doc, "sh")
		if len(lines) == 0 {
			continue
		}
		t.Run(filepath.Base(doc), func(t *testing.T) { runDocument(t, doc, lines) })
		ran += len(lines)
	}
	if ran < 10 {
		t.Errorf("found %d commands in the documents: are they read right?", ran)
	}
}

// documentCommands returns the lines of a document's blocks with a mark; one that ends with \ goes on.
func documentCommands(t *testing.T, doc, mark string) (out []string) {
	t.Helper()
	data, err := os.ReadFile(doc)
	if err != nil {
		t.Fatal(err)
	}
	inside, open := false, ""
	for line := range strings.Lines(string(data)) {
		line = strings.TrimRight(line, "\n")
		switch {
		case strings.HasPrefix(line, "```"):
			inside = line == "```"+mark
		case inside && strings.HasSuffix(line, "\\"):
			open += strings.TrimSuffix(line, "\\")
		case inside && strings.TrimSpace(line) != "" && !strings.HasPrefix(line, "#"):
			out = append(out, open+line)
			open = ""
		}
	}
	return out
}

// The certificates that the document makes are those that nodes accept.
func TestCertificatesInTheDocument(t *testing.T) {
	if _, err := exec.LookPath("openssl"); err != nil {
		t.Skip("openssl is not installed")
	}
	dir := t.TempDir()
	for _, line := range documentCommands(t, "../../docs/how-to/cluster-certificates.md", "bash") {
		cmd := exec.Command("bash", "-euo", "pipefail", "-c", line)
		cmd.Dir = dir
		if out, err := cmd.CombinedOutput(); err != nil {
			t.Fatalf("`%s` fails: %v\n%s", line, err, out)
		}
	}
	file := func(name string) string { return filepath.Join(dir, name) }
	for _, node := range []string{"n1", "n2", "n3"} {
		if _, err := mtls.Load(mtls.Files{Cert: file(node + ".pem"), Key: file(node + ".key"), CA: file("ca.pem")},
			"shop", node); err != nil {
			t.Error(err)
		}
	}
}

// localPort is an address of this machine.
var localPort = regexp.MustCompile(`127\.0\.0\.1:\d+`)

// freePorts returns a free port for each address of this machine in some commands, and for 127.0.0.1:8080.
func freePorts(t *testing.T, lines []string) map[string]string {
	t.Helper()
	out := map[string]string{}
	for _, addr := range append(localPort.FindAllString(strings.Join(lines, "\n"), -1), "127.0.0.1:8080") {
		if out[addr] != "" {
			continue
		}
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		defer ln.Close() // at the end, so that all differ
		out[addr] = ln.Addr().String()
	}
	return out
}

func runDocument(t *testing.T, doc string, lines []string) {
	ports := freePorts(t, lines)
	addr := ports["127.0.0.1:8080"]
	dir, tools := t.TempDir(), t.TempDir()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(self, filepath.Join(tools, grpcurlName)); err != nil {
		t.Fatal(err)
	}
	path := strings.Join([]string{filepath.Dir(binary), tools, os.Getenv("PATH")}, ":")
	env := append(os.Environ(), "PATH="+path, "GREBE_SERVER=http://"+addr,
		"GREBE_SLO_MS=30000", // the machine may be slow
		"HOME="+dir, "XDG_CACHE_HOME="+filepath.Join(dir, "cache"))
	last := "" // process that runs in the background
	for _, line := range lines {
		line = strings.ReplaceAll(line, "$!", last)
		line = localPort.ReplaceAllStringFunc(line, func(at string) string { return ports[at] })
		line = strings.ReplaceAll(line, "curl -sS ", "curl -sS --fail-with-body ") // here an error ends the test
		if command, ok := strings.CutSuffix(line, "&"); ok {
			last = strconv.Itoa(background(t, dir, env, command, addr))
			continue
		}
		cmd := exec.Command("bash", "-euo", "pipefail", "-c", line)
		cmd.Dir, cmd.Env = dir, env
		var out bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &out
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		enough := patience(t, cmd)
		err := cmd.Wait()
		enough()
		if err != nil {
			t.Fatalf("%s: `%s` fails: %v\n%s", filepath.Base(doc), line, err, out.String())
		}
	}
}

// background runs a command that serves, until the test ends, waits until it answers and returns its process.
func background(t *testing.T, dir string, env []string, command, addr string) int {
	t.Helper()
	cmd := exec.Command("bash", "-c", "exec "+command+" --listen "+addr)
	cmd.Dir, cmd.Env = dir, env
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		_ = cmd.Wait()
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Signal(syscall.SIGTERM)
		defer patience(t, cmd)()
		<-ended
	})
	defer patience(t, cmd)()
	for {
		resp, err := http.Get("http://" + addr + "/v2/health/ready")
		if err == nil {
			resp.Body.Close()
			if resp.StatusCode == http.StatusOK {
				return cmd.Process.Pid
			}
		}
		select {
		case <-ended:
			t.Fatalf("`%s` ends before it answers:\n%s", command, out.String())
		case <-time.After(50 * time.Millisecond):
		}
	}
}

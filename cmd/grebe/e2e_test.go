package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"reflect"
	"strings"
	"syscall"
	"testing"
	"time"

	"grebe/compute/cuda"
	"grebe/internal/cli"
	"grebe/shop/demo"
)

// binary is the built command, and home a folder with the demo's data; TestMain makes both.
var binary, demoData string

func TestMain(m *testing.M) {
	if args, child := os.LookupEnv(etcdEnv); child {
		os.Exit(serveEtcd(args))
	}
	if filepath.Base(os.Args[0]) == grpcurlName {
		if err := grpcurl(os.Args[1:], os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, "grpcurl:", err)
			os.Exit(1)
		}
		return
	}
	os.Exit(withBinary(m))
}

func withBinary(m *testing.M) int {
	dir, err := os.MkdirTemp("", "grebe-e2e-*")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(dir)
	binary, demoData = filepath.Join(dir, "grebe"), filepath.Join(dir, "demo")
	if built := os.Getenv("GREBE_BINARY"); built != "" { // where there is no compiler
		binary = built
		if err := demo.Toy(demoData); err != nil {
			panic(err)
		}
		return m.Run()
	}
	build := exec.Command("go", "build", "-ldflags", "-s -w", "-o", binary, ".")
	build.Env = append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		panic("build: " + err.Error() + "\n" + string(out))
	}
	if err := demo.Toy(demoData); err != nil {
		panic(err)
	}
	return m.Run()
}

// grebe runs the binary to its end.
func grebe(t *testing.T, args ...string) (stdout, stderr string, code int) {
	t.Helper()
	cmd := exec.Command(binary, args...)
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatalf("grebe %s: %v", strings.Join(args, " "), err)
	}
	return out.String(), errs.String(), cmd.ProcessState.ExitCode()
}

func TestHelpOfEveryCommandHasAnExample(t *testing.T) {
	for _, c := range []string{"demo", "serve", "rank", "recommend", "import", "index", "table import", "codes", "key",
		"health", "completion", "doctor", "eval", "eval world",
		"sim", "version", "batch", "batch rank", "batch recommend", "backup", "restore", "cluster", "cluster status",
		"cluster drain", "cluster undrain", "cluster leave"} {
		out, _, code := grebe(t, append(strings.Fields(c), "--help")...)
		if code != cli.Done || !strings.Contains(out, "Example") || !strings.Contains(out, "grebe "+c) {
			t.Errorf("grebe %s --help exits with %d and says\n%s\nwant 0 and an example", c, code, out)
		}
	}
	if out, _, code := grebe(t); code != cli.Done || !strings.Contains(out, "demo") {
		t.Errorf("grebe alone exits with %d and says\n%s\nwant 0 and the commands", code, out)
	}
}

func TestExitCodes(t *testing.T) {
	bad := filepath.Join(t.TempDir(), "bad.yaml")
	if err := os.WriteFile(bad, []byte("models: [{path: x}]\n\nlisen: here\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		args []string
		code int
		says string
	}{
		{[]string{"fly"}, cli.Misuse, "fly"},
		{[]string{"serve", "--no-such-flag"}, cli.Misuse, "no-such-flag"},
		{[]string{"serve"}, cli.Misuse, "-c FILE"},
		{[]string{"serve", "-c", bad}, cli.Failed, "bad.yaml:3: lisen: unknown key: did you mean listen?"},
		{[]string{"serve", "-c", "absent.yaml"}, cli.Failed, "absent.yaml"},
		{[]string{"serve", "--model", "absent", "--listen", "127.0.0.1:0", "--admin-listen=", "--grpc-listen="}, cli.Failed,
			"config.json"},
		{[]string{"serve", "--model", "x", "--set", "nothing"}, cli.Misuse, "KEY=VALUE"},
		{[]string{"serve", "--model", "x", "--device", "tpu"}, cli.Misuse,
			"--device: tpu: want one of auto, cpu, cuda, none"},
		{[]string{"serve", "--model", "x", "--set", "device=tpu"}, cli.Failed,
			"device: \"tpu\": want one of auto, cpu, cuda, none"},
		{[]string{"rank"}, cli.Misuse, "for whom?"},
		{[]string{"rank", "--user", "a"}, cli.Misuse, "rank what?"},
		{[]string{"rank", "--user", "a", "--user-text", "b"}, cli.Misuse, "user"},
		{[]string{"rank", "--prefix", "both", "--user", "a"}, cli.Misuse, "prefix"},
		{[]string{"rank", "--server", "127.0.0.1", "--user", "a", "--candidates", "b"}, cli.Misuse, "not an address"},
		{[]string{"rank", "--server", "http://127.0.0.1:1", "--user", "a", "--candidates", "b"}, cli.Failed,
			"is a server running"},
		{[]string{"rank", "--request", "x.json", "--user", "a"}, cli.Misuse, "has the whole request"},
		{[]string{"recommend"}, cli.Misuse, "for whom?"},
		{[]string{"recommend", "--user", "a", "--history", "b"}, cli.Misuse, "user"},
		{[]string{"recommend", "--user", "a", "--filter", "category"}, cli.Misuse, "NAME=VALUE"},
		{[]string{"recommend", "--request", "x.json", "-n", "3"}, cli.Misuse, "has the whole request"},
		{[]string{"recommend", "--request", "absent.json"}, cli.Failed, "absent.json"},
		{[]string{"recommend", "--server", "http://127.0.0.1:1", "--user", "a"}, cli.Failed, "is a server running"},
		{[]string{"eval", "--candidates", "1"}, cli.Misuse, "--candidates: 1: want at least 2"},
		{[]string{"doctor", "-c", bad}, cli.Failed, ""},
	} {
		_, errs, code := grebe(t, c.args...)
		if code != c.code || !strings.Contains(errs, c.says) {
			t.Errorf("grebe %q exits with %d and says %q, want %d and %q", c.args, code, errs, c.code, c.says)
		}
	}
}

func TestNoGPUSaysWhatIsMissing(t *testing.T) {
	if d, err := cuda.New(cuda.Options{}); err == nil {
		d.Close()
		t.Skip("this machine has a GPU")
	}
	_, errs, code := grebe(t, "serve", "--model", "../../testdata/fixtures/qwen3-tiny", "--device", "cuda")
	if code != cli.Failed || !strings.Contains(errs, "device cuda") || !strings.Contains(errs, "grebe doctor") {
		t.Errorf("exits with %d and says %q", code, errs)
	}
}

func TestVersion(t *testing.T) {
	if out, _, code := grebe(t, "version"); code != cli.Done || !strings.HasPrefix(out, "grebe ") {
		t.Errorf("exits with %d and says %q", code, out)
	}
}

func TestDemoOnce(t *testing.T) {
	data := filepath.Join(t.TempDir(), "fresh")
	out, errs, code := grebe(t, "demo", "--once", "--data", data)
	var got struct {
		Notes     []string
		Rank      rankResponse
		Recommend recommendResponse
	}
	if err := json.Unmarshal([]byte(out), &got); err != nil || code != cli.Done {
		t.Fatalf("exits with %d: %v\n%s%s", code, err, out, errs)
	}
	if len(got.Rank.Results) != 5 || !strings.Contains(strings.Join(got.Notes, " "), "invented") {
		t.Errorf("%d results and the notes %q, want 5 and that the shop is invented", len(got.Rank.Results), got.Notes)
	}
	again, _, _ := grebe(t, "demo", "--once", "--data", data, "--json")
	if rec := got.Recommend; len(rec.Results) != 5 || rec.Short || rec.Version == "" || rec.Usage.Cached == 0 {
		t.Errorf("recommended %+v, want 5 items, on the user's KV of the ranking", rec)
	}
	var same struct {
		Rank      rankResponse
		Recommend recommendResponse
	}
	if err := json.Unmarshal([]byte(again), &same); err != nil {
		t.Fatal(err)
	}
	for i, r := range got.Rank.Results {
		if same.Rank.Results[i] != r {
			t.Errorf("place %d is %+v the first time and %+v the second", i, r, same.Rank.Results[i])
		}
	}
	if !reflect.DeepEqual(same.Recommend.Results, got.Recommend.Results) {
		t.Errorf("recommended %+v the first time and %+v the second", got.Recommend.Results, same.Recommend.Results)
	}
}

func TestPrintConfig(t *testing.T) {
	file := filepath.Join(demoData, demo.ConfigFile)
	out, errs, code := grebe(t, "serve", "-c", file, "--slo-ms", "70", "--print-config")
	for _, want := range []string{"slo_ms: 70 # flag --slo-ms", "workers: 1 # default", "name: demo # " + file + ":3"} {
		if code != cli.Done || !strings.Contains(out, want) {
			t.Errorf("exits with %d, no %q in\n%s%s", code, want, out, errs)
		}
	}
}

// running is a server under test.
type running struct {
	cmd  *exec.Cmd
	http string
	log  chan string // lines after the one that told the address; closed at the end
}

// start runs a command that serves and waits until it does.
func start(t *testing.T, args ...string) *running {
	t.Helper()
	cmd := exec.Command(binary, append(args, "--log-format", "json")...)
	pipe, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	defer patience(t, cmd)()
	r := &running{cmd: cmd, log: make(chan string, 1000)}
	lines := bufio.NewScanner(pipe)
	var seen strings.Builder
	for lines.Scan() {
		seen.WriteString(lines.Text() + "\n")
		var l struct {
			Msg, HTTP string
			Seconds   float64
			Resident  string
		}
		if json.Unmarshal(lines.Bytes(), &l) == nil && l.Msg == "serving" {
			r.http = "http://" + l.HTTP
			if l.Seconds <= 0 || l.Resident == "" {
				t.Errorf("the log tells no seconds or memory: %s", lines.Text())
			}
			break
		}
	}
	if r.http == "" {
		_ = cmd.Wait()
		t.Fatalf("grebe %q ended before it served:\n%s", args, seen.String())
	}
	go func() {
		defer close(r.log)
		for lines.Scan() {
			r.log <- lines.Text()
		}
	}()
	return r
}

// unhurried is for commands whose requests carry no deadline of their own: the machine may be slow.
var unhurried = append(os.Environ(), "GREBE_SLO_MS=30000")

// patience kills a command that hangs; the returned function calls it off.
func patience(t *testing.T, cmd *exec.Cmd) (enough func() bool) {
	return time.AfterFunc(time.Until(late(t)), func() { _ = cmd.Process.Kill() }).Stop
}

// late is when a test stops waiting: a moment before all tests have to be done, however slow the machine is.
func late(t *testing.T) time.Time {
	if end, ok := t.Deadline(); ok {
		return end.Add(-15 * time.Second)
	}
	return time.Now().Add(time.Hour)
}

// stop asks the server to end and returns its exit code.
func (r *running) stop(t *testing.T) int {
	t.Helper()
	if err := r.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	defer patience(t, r.cmd)()
	for range r.log { // until the pipe closes
	}
	_ = r.cmd.Wait()
	return r.cmd.ProcessState.ExitCode()
}

func (r *running) get(t *testing.T, method, path, body string) (int, string) {
	t.Helper()
	req, err := http.NewRequest(method, r.http+path, strings.NewReader(body))
	if err != nil {
		t.Fatal(err)
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer resp.Body.Close()
	data, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return resp.StatusCode, string(data)
}

func TestServeRankAndStop(t *testing.T) {
	r := start(t, "serve", "-c", filepath.Join(demoData, demo.ConfigFile), "--listen", "127.0.0.1:0",
		"--data-dir", t.TempDir(),
		"--admin-listen", "127.0.0.1:0", "--grpc-listen", "127.0.0.1:0", "--slo-ms", "30000")

	if code, body := r.get(t, "GET", "/v2/health/ready", ""); code != 200 {
		t.Errorf("ready is %d: %s", code, body)
	}
	// The order is asked for: left alone, the server may choose another one for a later request, and scores depend on it.
	const request = `{"user": {"id": "ana"}, "candidates": [{"id": "i3"}, {"id": "i10"}, {"id": "i34"}], ` +
		`"prefix": "user", "request_id": "r1"}`
	code, direct := r.get(t, "POST", "/v1/rank", request)
	if code != 200 || !strings.Contains(direct, `"r1"`) {
		t.Fatalf("rank is %d: %s", code, direct)
	}
	unknown := `{"user": {"id": "ana"}, "candidates": [{"id": "i999"}]}`
	if code, body := r.get(t, "POST", "/v1/rank", unknown); code != 400 || !strings.Contains(body, "candidates[0].id") {
		t.Errorf("an unknown item is %d: %s", code, body)
	}
	if code, body := r.get(t, "GET", "/metrics", ""); code != 200 || !strings.Contains(body, "grebe_requests_total") {
		t.Errorf("metrics are %d", code)
	}

	out, errs, exit := grebe(t, "rank", "--server", r.http, "--user", "ana", "--candidates", "i3,i10,i34", "--prefix",
		"user")
	if exit != cli.Done || !sameResults(t, out, direct) {
		t.Errorf("grebe rank exits with %d and says\n%s%s\nwant the results of\n%s", exit, out, errs, direct)
	}
	file := filepath.Join(t.TempDir(), "request.json")
	if err := os.WriteFile(file, []byte(request), 0o600); err != nil {
		t.Fatal(err)
	}
	if out, errs, exit := grebe(t, "rank", "--server", r.http, "--request", file); exit != cli.Done ||
		!sameResults(t, out, direct) {
		t.Errorf("grebe rank --request exits with %d and says\n%s%s", exit, out, errs)
	}
	list := filepath.Join(demoData, "items.ndjson")
	if out, errs, exit := grebe(t, "rank", "--server", r.http, "--user-text", "Likes birds.", "--candidates-file", list,
		"--prefix", "item", "--top-k", "2"); exit != cli.Done || strings.Count(out, `"index"`) != 2 {
		t.Errorf("grebe rank --candidates-file exits with %d and says\n%s%s", exit, out, errs)
	}
	if _, errs, exit := grebe(t, "rank", "--server", r.http, "--user", "nobody", "--candidates",
		"i1"); exit != cli.Failed || !strings.Contains(errs, "user.id") {
		t.Errorf("an unknown user exits with %d and says %q", exit, errs)
	}
	if exit := r.stop(t); exit != cli.Done {
		t.Errorf("after SIGTERM the server exits with %d, want 0", exit)
	}
}

func sameResults(t *testing.T, a, b string) bool {
	t.Helper()
	var x, y rankResponse
	if json.Unmarshal([]byte(a), &x) != nil || json.Unmarshal([]byte(b), &y) != nil || len(x.Results) == 0 ||
		len(x.Results) != len(y.Results) {
		return false
	}
	for i := range x.Results {
		if x.Results[i] != y.Results[i] {
			return false
		}
	}
	return true
}

// The curl commands that the demo prints must work: they are run here, as requests. A body in quotes may have several
// lines.
func TestDemoPrintsCommandsThatWork(t *testing.T) {
	var out bytes.Buffer
	r := startDemo(t, &out)
	tried := 0
	for _, command := range strings.Split(out.String(), "curl -sS "+r.http)[1:] {
		path, rest, _ := strings.Cut(command, " -d '")
		body, _, closed := strings.Cut(rest, "'\n")
		if !closed {
			t.Errorf("the quote is not closed in %s", command)
		}
		if code, answer := r.get(t, "POST", path, body); code != 200 {
			t.Errorf("%s with %s is %d: %s", path, body, code, answer)
		}
		tried++
	}
	if tried != 4 || !strings.Contains(out.String(), "invented") {
		t.Errorf("%d curl commands, want 4, and that the shop is invented, in\n%s", tried, out.String())
	}
	if exit := r.stop(t); exit != cli.Done {
		t.Errorf("after SIGTERM the demo exits with %d, want 0", exit)
	}
}

// startDemo starts the demo and waits for its welcome, which ends with how to stop it.
func startDemo(t *testing.T, out *bytes.Buffer) *running {
	t.Helper()
	read, write, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(binary, "demo", "--data", filepath.Join(t.TempDir(), "demo"), "--listen", "127.0.0.1:0")
	cmd.Stdout, cmd.Env = write, unhurried
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = cmd.Process.Kill() })
	defer patience(t, cmd)()
	write.Close()
	lines := bufio.NewScanner(read)
	for lines.Scan() {
		out.WriteString(lines.Text() + "\n")
		if strings.HasPrefix(lines.Text(), "Ctrl-C") {
			break
		}
	}
	address := ""
	for line := range strings.Lines(out.String()) {
		if _, after, ok := strings.Cut(line, "demo on "); ok {
			address = strings.TrimSuffix(strings.TrimSpace(after), "/")
		}
	}
	if address == "" {
		t.Fatalf("the demo tells no address:\n%s", out.String())
	}
	done := make(chan string)
	go func() {
		defer close(done)
		_, _ = io.Copy(io.Discard, read)
	}()
	return &running{cmd: cmd, http: address, log: done}
}

// NOTICE lists every module that is linked in, so that whoever ships the binary knows the licences.
func TestNoticeListsEveryModule(t *testing.T) {
	notice, err := os.ReadFile("../../NOTICE")
	if err != nil {
		t.Fatal(err)
	}
	out, err := exec.Command("go", "list", "-deps", "-f", "{{with .Module}}{{if not .Main}}{{.Path}}{{end}}{{end}}",
		".").Output()
	if err != nil {
		t.Fatal(err)
	}
	for _, module := range strings.Fields(string(out)) {
		if !strings.Contains(string(notice), module+"\n") && !strings.Contains(string(notice), module+" ") {
			t.Errorf("NOTICE does not name %s, which is linked in", module)
		}
	}
}

package app

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"grebe/compute"
	"grebe/compute/cpu"
	"grebe/compute/cuda"
	"grebe/compute/cuda/driver"
	"grebe/compute/cuda/kernels"
	"grebe/internal/cli"
	"grebe/internal/config"
	"grebe/model/modeltest"
)

// frail is a CPU that can be lost like a GPU: from then on every batch fails.
type frail struct {
	compute.Device
	lost *atomic.Bool
}

var errFault = errors.New("an illegal address")

func (d *frail) Lost() error {
	if d.lost.Load() {
		return errFault
	}
	return nil
}

func (d *frail) Open(s compute.Shape, rows int) (compute.Runner, error) {
	r, err := d.Device.Open(s, rows)
	if err != nil {
		return nil, err
	}
	return &frailRunner{r.(compute.Blender), d}, nil
}

type frailRunner struct {
	compute.Blender
	d *frail
}

func (r *frailRunner) Begin(b *compute.Batch) error {
	if err := r.d.Lost(); err != nil {
		return err
	}
	return r.Blender.Begin(b)
}

// lostConfig writes a small model to a folder, and returns the configuration of a server for it.
func lostConfig(t *testing.T, dir, listen string) *config.Config {
	t.Helper()
	spec := modeltest.Spec{Architecture: modeltest.Qwen2, Hidden: 32, Layers: 1, Heads: 2, KVHeads: 1, Inter: 64,
		Vocab: 64}
	if err := modeltest.Write(filepath.Join(dir, "model"), spec); err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(dir, "grebe.yaml")
	text := "listen: " + listen + "\nadmin_listen: \"\"\ngrpc_listen: \"\"\nthreads: 1\n" +
		"models: [{path: model, prompt: {instruction: {tokens: [7]}}}]\n"
	if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	cfg, err := config.Load(config.Source{File: file,
		Flags: []config.Setting{{Path: "data_dir", Value: filepath.Join(dir, "data")}}})
	if err != nil {
		t.Fatal(err)
	}
	return &cfg.Config
}

// If its device is lost, a server fails requests with an error that says so and is not ready. It reopens the device by
// itself and answers as before, at the same address.
func TestALostDeviceIsOpenedAgain(t *testing.T) {
	cfg := lostConfig(t, t.TempDir(), "127.0.0.1:0")
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	var devices []*frail
	ready := make(chan net.Addr, 2)
	opening := make(chan struct{})
	served := make(chan error, 1)
	go func() {
		served <- Serve(ctx, cfg, Options{Log: slog.New(slog.DiscardHandler),
			Open: func(*config.Config, *slog.Logger) ([]compute.Device, error) {
				if len(devices) > 0 {
					<-opening
				}
				d, err := cpu.New(cpu.Options{Threads: 1})
				devices = append(devices, &frail{d, new(atomic.Bool)})
				return []compute.Device{devices[len(devices)-1]}, err
			}}, Process{Started: time.Now(), Ready: func(at net.Addr) { ready <- at }})
	}()
	next := func() net.Addr {
		t.Helper()
		select {
		case at := <-ready:
			return at
		case err := <-served:
			t.Fatalf("serving ended: %v", err)
			return nil
		}
	}
	first := next()
	before, status := rankAt(t, first)
	if status != http.StatusOK {
		t.Fatalf("a sound device: %d %s", status, before)
	}
	devices[0].lost.Store(true)
	if body, status := rankAt(t, first); status != http.StatusServiceUnavailable || !bytes.Contains(body, []byte("lost")) {
		t.Errorf("a lost device: %d %s", status, body)
	}
	for { // until it is not ready: the old server is gone and the listeners answer
		resp, err := http.Get("http://" + first.String() + "/v2/health/ready")
		if err != nil {
			continue
		}
		resp.Body.Close()
		if resp.StatusCode != http.StatusServiceUnavailable {
			t.Fatalf("a lost device: ready with %d", resp.StatusCode)
		}
		break
	}
	close(opening)
	again := next()
	if again.String() != first.String() {
		t.Errorf("served at %v again, before at %v", again, first)
	}
	after, status := rankAt(t, again)
	if status != http.StatusOK || !bytes.Equal(scores(t, before), scores(t, after)) {
		t.Errorf("opened again: %d %s, before %s", status, after, before)
	}
	cancel()
	if err := <-served; err != nil {
		t.Error(err)
	}
}

// If the device does not open again, the process starts over and continues counting losses.
func TestStartingOver(t *testing.T) {
	var executed []string
	p := Process{Env: []string{"A=b", lossesVariable + "=1"},
		Exec: func(env []string) error { executed = env; return nil }}
	log := slog.New(slog.DiscardHandler)
	if err := p.startOver(t.Context(), log, "cuda", 2, errFault); !errors.Is(err, errFault) || executed[0] != "A=b" ||
		lossesBefore(executed) != 2 ||
		executed[len(executed)-1] != config.EnvName("device")+"=cuda" {
		t.Errorf("%v, a process with %q", err, executed)
	}
	p.Exec = nil
	if err := p.startOver(t.Context(), log, "cuda", 2, errFault); !errors.Is(err, errFault) {
		t.Errorf("without a way to start over: %v", err)
	}
}

// Losses are in a row only if they come soon after serving began. The time of loading does not count.
func TestLossesInARow(t *testing.T) {
	n := lossesBefore([]string{lossesVariable + "=2"})
	if n, err := n.after(soundAfter - 1); n != 3 || err != nil {
		t.Errorf("a third loss: %d, %v", n, err)
	}
	if n, err := n.after(soundAfter); n != 1 || err != nil {
		t.Errorf("a loss after long service: %d, %v", n, err)
	}
	if _, err := losses(maxLosses).after(0); !errors.Is(err, errLost) {
		t.Errorf("one loss too many: %v", err)
	}
	if n := lossesBefore([]string{"A=b", lossesVariable + "=many"}); n != 0 {
		t.Errorf("a broken count is %d", n)
	}
}

// A device that is lost whenever it serves is not reopened for ever.
func TestADeviceIsLostTooOften(t *testing.T) {
	cfg := lostConfig(t, t.TempDir(), "127.0.0.1:0")
	opened := 0
	var last *frail
	served := make(chan error, 1)
	ready := make(chan net.Addr)
	go func() {
		served <- Serve(t.Context(), cfg, Options{Log: slog.New(slog.DiscardHandler),
			Open: func(*config.Config, *slog.Logger) ([]compute.Device, error) {
				d, err := cpu.New(cpu.Options{Threads: 1})
				opened, last = opened+1, &frail{d, new(atomic.Bool)}
				return []compute.Device{last}, err
			}}, Process{Started: time.Now(), Ready: func(at net.Addr) { ready <- at }})
	}()
	for {
		select {
		case at := <-ready:
			last.lost.Store(true)
			if body, status := rankAt(t, at); status != http.StatusServiceUnavailable {
				t.Errorf("a lost device: %d %s", status, body)
			}
		case err := <-served:
			if !errors.Is(err, errLost) || opened != maxLosses+1 {
				t.Errorf("serving ended with %v after %d openings, want %d", err, opened, maxLosses+1)
			}
			return
		}
	}
}

func rankAt(t *testing.T, at net.Addr) (body []byte, status int) {
	t.Helper()
	if body, status = tryRank(at); status == 0 {
		t.Fatalf("no answer from %v", at)
	}
	return body, status
}

// tryRank requests a ranking; status is 0 if nothing answers.
func tryRank(at net.Addr) (body []byte, status int) {
	const request = `{"user":{"id":"u","tokens":[1,2,3]},"candidates":[{"tokens":[4],"identifier":10},{"tokens":[5],` +
		`"identifier":11}],"prefix":"user","deadline_ms":20000}`
	resp, err := http.Post("http://"+at.String()+"/v1/rank", "application/json", strings.NewReader(request))
	if err != nil {
		return nil, 0
	}
	defer resp.Body.Close()
	if body, err = io.ReadAll(resp.Body); err != nil {
		return nil, 0
	}
	return body, resp.StatusCode
}

// scores returns the ranking of an answer, without times and ids.
func scores(t *testing.T, body []byte) []byte {
	t.Helper()
	var answer struct {
		Results json.RawMessage `json:"results"`
	}
	if err := json.Unmarshal(body, &answer); err != nil || len(answer.Results) == 0 {
		t.Fatalf("%v in %s", err, body)
	}
	return answer.Results
}

// A wild write makes a GPU useless for the process: the server reports it, starts over by itself and answers as before.
// The test runs the server in a process of its own.
func TestALostGPUIsRecoveredFrom(t *testing.T) {
	const folder, listen = "GREBE_TEST_FOLDER", "127.0.0.1:18093"
	if dir := os.Getenv(folder); dir != "" {
		serveFaulty(t, dir, listen)
		return
	}
	if d, err := cuda.New(cuda.Options{}); err != nil {
		t.Skipf("no GPU to lose: %v", err)
	} else if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	child := exec.Command(os.Args[0], "-test.run=^TestALostGPUIsRecoveredFrom$", "-test.v")
	child.Env = append(os.Environ(), folder+"="+t.TempDir())
	var log bytes.Buffer
	child.Stdout, child.Stderr = &log, &log
	in, err := child.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := child.Start(); err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = child.Process.Kill()
		_ = child.Wait()
		t.Logf("the server's log:\n%s", log.String())
	}()
	at, err := net.ResolveTCPAddr("tcp", listen)
	if err != nil {
		t.Fatal(err)
	}
	before := untilRanked(t, at)
	if _, err := io.WriteString(in, "fault\n"); err != nil {
		t.Fatal(err)
	}
	for { // until the fault shows
		if body, status := tryRank(at); status != http.StatusOK {
			t.Logf("after the fault: %d %s", status, body)
			break
		}
	}
	begun := time.Now()
	after := untilRanked(t, at)
	t.Logf("answered again after %v", time.Since(begun))
	if !bytes.Equal(scores(t, before), scores(t, after)) {
		t.Errorf("before %s, after %s", before, after)
	}
}

// serveFaulty serves on a GPU until it is killed. A line on standard input makes a kernel write to an invalid address.
func serveFaulty(t *testing.T, dir, listen string) {
	cfg := lostConfig(t, dir, listen)
	err := Serve(t.Context(), cfg, Options{Log: slog.New(slog.NewTextHandler(os.Stdout, nil)),
		Open: func(*config.Config, *slog.Logger) ([]compute.Device, error) {
			d, err := cuda.New(cuda.Options{})
			if err == nil {
				go fault(d)
			}
			return []compute.Device{d}, err
		}}, Process{Started: time.Now(), Env: os.Environ(), Exec: cli.ExecSelf})
	t.Fatalf("serving ended: %v", err)
}

func fault(d cuda.Device) {
	if _, err := fmt.Fscanln(os.Stdin, new(string)); err != nil {
		return
	}
	c := d.Context()
	defer c.Leave()
	err := c.Enter()
	if err != nil {
		fmt.Println("no fault:", err)
		return
	}
	m, err := kernels.Load(c, "noise.cu", "FORMAT=0")
	if err != nil {
		fmt.Println("no fault:", err)
		return
	}
	f, err := m.Function("noise")
	if err != nil {
		fmt.Println("no fault:", err)
		return
	}
	s, _ := c.NewStream()
	a, _ := driver.NewArgs()
	_ = f.Launch(s, driver.Launch{Grid: [3]int{1}, Block: [3]int{256}}, a.Ptr(256).Int64(1024).Int(1).Float(0).Float(1))
	fmt.Println("fault:", s.Sync())
}

// untilRanked requests a ranking until there is an answer.
func untilRanked(t *testing.T, at net.Addr) []byte {
	t.Helper()
	for t.Context().Err() == nil {
		if body, status := tryRank(at); status == http.StatusOK {
			return body
		}
	}
	return nil
}

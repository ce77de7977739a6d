package leader

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"os"
	"os/exec"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/anishathalye/porcupine"

	"grebe/cluster/coord/coordtest"
	"grebe/cluster/coord/embedded"
	"grebe/cluster/coord/etcd"
)

// childEnv makes the test binary a process that wants to lead: the address of etcd and its name. It prints the
// beginning and the end of each operation.
const childEnv = "GREBE_TEST_LEADER"

const processTTL = 500 * time.Millisecond

func TestMain(m *testing.M) {
	args, child := os.LookupEnv(childEnv)
	if !child {
		os.Exit(m.Run())
	}
	addr, self, _ := strings.Cut(args, " ")
	c, err := etcd.Open(etcd.Options{Endpoints: []string{addr}, Root: "/grebe/"})
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
	_ = Run(context.Background(), c, Options{Key: "leader/map", Self: self, TTL: processTTL}, childLeads)
}

var childOps atomic.Int64

// tell prints the beginning of an operation, and returns what prints its end.
func tell(k kind, term int64, data string) func(ok bool, data string) {
	id := childOps.Add(1)
	fmt.Println("call", id, k, term, time.Now().UnixNano(), data)
	return func(ok bool, data string) { fmt.Println("end", id, ok, time.Now().UnixNano(), data) }
}

// childLeads writes as fast as etcd answers, and does not look at its context: only its clock and the fence stop it.
func childLeads(_ context.Context, t *Term) error {
	end := tell(claims, t.Number, "-")
	o, err := t.Claim(context.Background(), "map")
	if err != nil {
		return err
	}
	end(true, "-"+string(o.Data()))
	for n := 0; ; n++ {
		data := fmt.Sprintf("%d.%d", t.Number, n)
		end := tell(writes, t.Number, "-"+data)
		err := o.Write(context.Background(), []byte(data))
		if err == nil {
			end(true, "-")
		}
		if errors.Is(err, ErrFenced) || errors.Is(err, ErrNotLeading) {
			end(false, "-")
			return err
		}
		time.Sleep(20 * time.Millisecond)
	}
}

// records collects what the children print. Operations without an end have an unknown outcome.
type records struct {
	mu    sync.Mutex
	all   []*operation
	terms map[int64]int
}

func (r *records) read(t testing.TB, process int, lines *bufio.Scanner) {
	open := map[int64]*operation{}
	for lines.Scan() {
		var id, term, at int64
		var k, data string
		var ok bool
		if n, _ := fmt.Sscanf(lines.Text(), "call %d %s %d %d -%s", &id, &k, &term, &at, &data); n >= 4 {
			o := &operation{kind: kind(k), term: term, data: data, process: process, call: at, end: math.MaxInt64, blind: true}
			open[id] = o
			r.mu.Lock()
			r.all = append(r.all, o)
			r.terms[term] = process
			r.mu.Unlock()
			continue
		}
		if n, _ := fmt.Sscanf(lines.Text(), "end %d %t %d -%s", &id, &ok, &at, &data); n < 3 || open[id] == nil {
			t.Errorf("a child says %q", lines.Text())
			continue
		}
		o := open[id]
		o.end, o.failed, o.blind = at, !ok, false
		if o.kind == claims {
			o.data = data
		}
	}
}

// unsure is the model with operations whose outcome is unknown: such a write takes effect only in its term.
var unsure = porcupine.Model{
	Init: model.Init,
	Step: func(s, in, _ any) (bool, any) {
		o := in.(*operation)
		if o.blind && o.kind == writes && s.(state).term != o.term || o.blind && o.kind == claims && s.(state).term > o.term {
			return true, s
		}
		ok, next := step(s.(state), o)
		return ok, next
	},
}

// Real processes that want to lead are stopped for longer than their ttl, and killed, in the middle of what they do.
func TestStoppedProcessCannotWrite(t *testing.T) {
	t.Parallel()
	server, err := embedded.Start(t.Context(), embedded.Options{Dir: coordtest.Dir(t)})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(server.Close)
	r := &records{terms: map[int64]int{}}
	var readers sync.WaitGroup
	start := func(process, boot int) *exec.Cmd {
		cmd := exec.Command(os.Args[0])
		cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%s p%d/%d", childEnv, server.Addr(), process, boot))
		cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
		out, err := cmd.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		readers.Go(func() { r.read(t, process, bufio.NewScanner(out)) })
		return cmd
	}
	children := []*exec.Cmd{start(0, 0), start(1, 0), start(2, 0)}
	rng := rand.New(rand.NewPCG(3, 3))
	const faults = 10
	var resumes sync.WaitGroup
	var killed []*exec.Cmd
	for boot := range faults {
		time.Sleep(processTTL + time.Duration(rng.IntN(int(processTTL))))
		i := r.leader(rng.IntN(len(children)))
		if rng.IntN(4) == 0 {
			_ = children[i].Process.Kill()
			killed = append(killed, children[i])
			children[i] = start(i, boot+1)
			continue
		}
		p := children[i].Process
		_ = p.Signal(syscall.SIGSTOP)
		resumes.Go(func() {
			time.Sleep(processTTL + time.Duration(rand.IntN(int(2*processTTL))))
			_ = p.Signal(syscall.SIGCONT)
		})
	}
	resumes.Wait()
	time.Sleep(processTTL) // those that were stopped have their last word
	for _, c := range children {
		_ = c.Process.Kill()
	}
	readers.Wait()
	for _, c := range append(killed, children...) {
		_ = c.Wait()
	}
	var ops []porcupine.Operation
	unknown := 0
	for _, o := range r.all {
		if o.failed {
			continue
		}
		if o.blind {
			unknown++
		}
		ops = append(ops, porcupine.Operation{ClientId: o.process, Input: o, Call: o.call, Return: o.end})
	}
	t.Logf("%d stops and kills of processes: %d terms, %d operations, %d of unknown outcome", faults, len(r.terms),
		len(ops), unknown)
	if verdict := porcupine.CheckOperationsTimeout(unsure, ops, 5*time.Second); verdict != porcupine.Ok {
		t.Errorf("porcupine says %v", verdict)
	}
	if len(r.terms) < 3 {
		t.Errorf("only %d terms", len(r.terms))
	}
}

// leader returns the process of the highest term, mostly; or another one.
func (r *records) leader(other int) int {
	r.mu.Lock()
	defer r.mu.Unlock()
	highest, process := int64(0), other
	for term, p := range r.terms {
		if term > highest && other != 0 {
			highest, process = term, p
		}
	}
	return process
}

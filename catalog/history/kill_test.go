package history

import (
	"bufio"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"slices"
	"testing"
	"time"

	"grebe/catalog"
	"grebe/prompt"
)

// entriesAt is the catalog of the kill test: item i of a hundred has the codes of the last version that
// is congruent to it.
func entriesAt(version uint64) []catalog.Entry {
	var out []catalog.Entry
	for v := max(version, 100) - 99; v <= version; v++ {
		out = append(out, entryAt(v))
	}
	return out
}

func entryAt(v uint64) catalog.Entry {
	return catalog.Entry{Version: v, Item: &prompt.Item{ID: fmt.Sprint("item", v%100), Codes: []int32{int32(v), 7}}}
}

// writeUntilKilled is the child: it says on standard output which version it is about to write.
func writeUntilKilled(dir string) {
	from := uint64(100)
	if _, err := fmt.Sscan(os.Getenv("GREBE_TEST_FROM"), &from); err != nil {
		panic(err)
	}
	h, err := Open(slices.Values(entriesAt(from)), from, Options{Dir: dir, Compact: 20})
	if err != nil {
		panic(err)
	}
	for v := from + 1; ; v++ {
		fmt.Println(v)
		if _, err := h.Apply(added(v, entryAt(v))); err != nil {
			panic(err)
		}
	}
}

// TestKill kills a writing process at random moments. Every version that is found afterwards must be whole,
// and the one before the last that was begun must be there.
func TestKill(t *testing.T) {
	self := must(os.Executable())
	dir := t.TempDir()
	r := rand.New(rand.NewPCG(7, 8))
	last := uint64(100)
	for round := range 15 {
		cmd := exec.Command(self)
		cmd.Env = append(os.Environ(), "GREBE_TEST_WRITE="+dir, fmt.Sprint("GREBE_TEST_FROM=", last))
		cmd.Stderr = os.Stderr
		out := must(cmd.StdoutPipe())
		mustDo(t, cmd.Start())
		lines := bufio.NewScanner(out)
		lines.Scan()
		timer := time.AfterFunc(time.Duration(r.IntN(40))*time.Millisecond, func() { _ = cmd.Process.Kill() })
		for ok := true; ok; ok = lines.Scan() {
			_, _ = fmt.Sscan(lines.Text(), &last)
		}
		_ = cmd.Wait()
		timer.Stop()
		h := must(Open(slices.Values(entriesAt(last)), last, Options{Dir: dir, Compact: 20}))
		found := false
		for _, v := range h.Versions() {
			found = found || v.Number >= last-1
			if err := h.Load(v); err != nil {
				t.Fatalf("round %d: version %d: %v", round, v.Number, err)
			}
			live, want := v.Live(), entriesAt(v.Number)
			for i, slot := range live {
				if id := v.Table().ID(slot); len(live) != len(want) || id != want[i].Item.ID {
					t.Fatalf("round %d: version %d has %s among %d items, want %s among %d", round, v.Number, id, len(live),
						want[i].Item.ID, len(want))
				}
			}
			h.Unload(v)
		}
		if !found {
			t.Errorf("round %d: version %d is lost", round, last-1)
		}
		mustDo(t, h.Close())
	}
	t.Logf("%d versions were written", last-100)
}

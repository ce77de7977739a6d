package disk

import (
	"bufio"
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"sync"
	"testing"
)

const (
	childDir  = "GREBE_DISK_TEST_DIR"
	childSeed = "GREBE_DISK_TEST_SEED"
	killKeys  = 40
)

func TestMain(m *testing.M) {
	if dir := os.Getenv(childDir); dir != "" {
		seed, _ := strconv.ParseUint(os.Getenv(childSeed), 10, 64)
		if err := child(dir, seed); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	os.Exit(m.Run())
}

func killOptions(seed uint64) Options {
	if seed%3 == 0 {
		return Options{Budget: 2 * mib, Segment: 512 << 10} // evicts all the time
	}
	return Options{Budget: 10 * mib, Segment: mib}
}

// killPayloads are the payloads by key.
var killPayloads = sync.OnceValue(func() (all [killKeys][]byte) {
	for k := range all {
		all[k] = pattern(keyOf(k), 'p', 0, k*k*250)
	}
	return all
})

// child puts and deletes until it is killed, and says so before and after each.
func child(dir string, seed uint64) error {
	s, err := Open(dir, killOptions(seed))
	if err != nil {
		return err
	}
	r := rand.New(rand.NewPCG(seed, 11))
	payloads := killPayloads()
	for {
		k := r.IntN(killKeys)
		key := keyOf(k)
		if r.IntN(4+int(seed%2)*60) == 0 { // half of the lives hardly ever wait for the disk
			fmt.Printf("delete %d 0\n", k)
			if err := s.Delete(key); err != nil {
				return err
			}
			fmt.Printf("deleted %d 0\n", k)
			continue
		}
		fmt.Printf("put %d 0\n", k)
		if err := s.Put(key, pattern(key, 'm', 0, 60), cutUp(r, payloads[k])); err != nil {
			return err
		}
		fmt.Printf("have %d %d\n", k, s.Stats().Evictions)
	}
}

// runChild starts a child, kills it after some lines and returns what each key went through last, and how
// many records the child evicted.
func runChild(t *testing.T, dir string, seed uint64, r *rand.Rand) (last map[int]string, evicted int) {
	t.Helper()
	cmd := exec.Command(os.Args[0])
	cmd.Env = append(os.Environ(), childDir+"="+dir, childSeed+"="+strconv.FormatUint(seed, 10))
	var stderr bytes.Buffer
	cmd.Stderr = &stderr
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	last = map[int]string{}
	lines, in := 1+r.IntN(40), bufio.NewScanner(out)
	for n := 0; in.Scan(); n++ {
		var what string
		var k, e int
		if _, err := fmt.Sscan(in.Text(), &what, &k, &e); err != nil {
			continue // a line cut short by the kill: it was not said
		}
		last[k] = what
		evicted = max(evicted, e)
		if lines >= 0 && n >= lines && (what == "put" || what == "delete") {
			spin(r.IntN(400_000)) // to somewhere within the operation
			lines = -1
			if err := cmd.Process.Kill(); err != nil {
				t.Fatal(err)
			}
		}
	}
	_ = cmd.Wait() // killed
	if lines >= 0 {
		t.Fatalf("the child ended by itself: %s", stderr.String())
	}
	return last, evicted
}

var spun int

func spin(n int) {
	for range n {
		spun++
	}
}

func TestKilledAtRandomMoments(t *testing.T) {
	t.Parallel()
	skipUnderRace(t)
	dir := t.TempDir()
	r := rand.New(rand.NewPCG(2, 3))
	state := map[int]string{} // what each key went through last, over all lives
	torn, kept := uint64(0), 0
	for seed := range uint64(30) {
		last, evicted := runChild(t, dir, seed, r)
		for k, what := range last {
			state[k] = what
		}
		if evicted == 0 && killOptions(seed).Budget < 10*mib {
			evicted = 1 // Open may have evicted
		}
		noBytes(t, dir, state, seed)
		s, err := Open(dir, killOptions(1))
		if err != nil {
			t.Fatalf("life %d: %v", seed, err)
		}
		for k := range killKeys {
			meta, payload, ok := fetch(t, s, keyOf(k))
			switch {
			case ok && (!bytes.Equal(meta, pattern(keyOf(k), 'm', 0, 60)) || !bytes.Equal(payload, killPayloads()[k])):
				t.Fatalf("life %d: record %d is wrong", seed, k)
			case ok && state[k] == "deleted":
				t.Fatalf("life %d: deleted record %d is there", seed, k)
			case !ok && state[k] == "have" && evicted == 0:
				t.Fatalf("life %d: record %d was put and is lost", seed, k)
			case !ok:
				delete(state, k)
			case ok:
				state[k] = "have"
				kept++
			}
		}
		st := s.Stats()
		if st.ChecksumFailures != 0 {
			t.Fatalf("life %d: a killed process left half records: %+v", seed, st)
		}
		books(t, s)
		torn += st.TornRecords
		s.closeFiles() // as if killed too
		if err := s.dir.Close(); err != nil {
			t.Fatal(err)
		}
	}
	t.Logf("30 kills: %d torn records erased, %d records found again", torn, kept)
}

// noBytes looks for bytes of deleted records in the files as the killed process left them.
func noBytes(t *testing.T, dir string, state map[int]string, seed uint64) {
	t.Helper()
	var all []byte
	names, _ := filepath.Glob(filepath.Join(dir, "*"+segmentSuffix))
	for _, n := range names {
		b, err := os.ReadFile(n)
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, b...)
	}
	for k, what := range state {
		if what != "deleted" {
			continue
		}
		p := killPayloads()[k]
		samples := [][]byte{pattern(keyOf(k), 'm', 0, 60)}
		if len(p) > 64 {
			samples = append(samples, p[len(p)/2:len(p)/2+32], p[len(p)-32:])
		}
		for _, b := range samples {
			if bytes.Contains(all, b) {
				t.Fatalf("life %d: bytes of deleted record %d are in the files", seed, k)
			}
		}
	}
}

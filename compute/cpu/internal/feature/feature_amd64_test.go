//go:build linux && !noasm

package feature

import (
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// TestLevelNeedsAllItsInstructions: a level is chosen only where each of its instruction sets is there.
func TestLevelNeedsAllItsInstructions(t *testing.T) {
	sets := [][]bool{{true, true, true}, {true, true, true, true, true}, {true, true, true}}
	tiles := true
	level := func() Level { return levelOf(sets[0], sets[1], sets[2], func() bool { return tiles }) }
	if got := level(); got != AMX {
		t.Errorf("with everything the level is %v", got)
	}
	for i, below := range []Level{Plain, AVX2, AVX512} {
		for j := range sets[i] {
			sets[i][j] = false
			if got := level(); got != below {
				t.Errorf("without set %d of level %v the level is %v, want %v", j, below+1, got, below)
			}
			sets[i][j] = true
		}
	}
	if tiles = false; level() != AVX512 {
		t.Errorf("without the system's permission the level is %v", level())
	}
}

// instructions beyond those that a level's name says, as kernels use them.
var instructions = map[string]*regexp.Regexp{
	"F16C": regexp.MustCompile(`\bVCVTP(H2PS|S2PH)\b`),
	"BMI2": regexp.MustCompile(`\b(BZHI|MULX|RORX|SARX|SHLX|SHRX|PDEP|PEXT)[LQ]\b`),
	"BMI1": regexp.MustCompile(`\b(TZCNT|ANDN|BLSR|BLSI|BLSMSK|BEXTR)[LQ]\b`),
	"VNNI": regexp.MustCompile(`\bVPDP(BUSD|WSSD)S?\b`),
	"VBMI": regexp.MustCompile(`\bVPERM(B|I2B|T2B)\b`),
}

// TestKernelsUseWhatIsAskedFor: the assembly of the level AVX2 uses no instruction of BMI, and no level's uses sets
// that detection does not ask for.
func TestKernelsUseWhatIsAskedFor(t *testing.T) {
	allowed := map[string][]string{"avx2_amd64.s": {"F16C"}, "avx512_amd64.s": {"F16C", "BMI2"},
		"amx_amd64.s": {"F16C", "BMI2"}, "vnni_amd64.s": {"VNNI"}, "epilogue_amd64.s": {"F16C", "BMI2"}}
	files, err := filepath.Glob("../../*/*_amd64.s")
	if err != nil || len(files) < 6 {
		t.Fatalf("%d files: %v", len(files), err)
	}
	for _, path := range files {
		raw, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		for set, pattern := range instructions {
			if found := pattern.Find(raw); found != nil && !strings.Contains(strings.Join(allowed[filepath.Base(path)], " "),
				set) {
				t.Errorf("%s uses %s of %s, which is not asked for", path, found, set)
			}
		}
	}
}

package safetensors

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"grebe/compute"
)

// residentFile returns how many bytes of mapped files this process holds.
func residentFile(t *testing.T) int {
	t.Helper()
	status, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Skip("no /proc/self/status: ", err)
	}
	for line := range strings.Lines(string(status)) {
		var kb int
		if n, _ := fmt.Sscanf(line, "RssFile: %d kB", &kb); n == 1 {
			return kb << 10
		}
	}
	t.Skip("no RssFile in /proc/self/status")
	return 0
}

func TestReleaseGivesPagesBack(t *testing.T) {
	const size = 32 << 20
	path := filepath.Join(t.TempDir(), SingleFile)
	big := Named{Name: "big", DType: compute.F32, Shape: []int{size / 4}, Data: Bytes(make([]byte, size))}
	if err := Write(path, []Named{f32("a", []int{1}, 3), big, f32("z", []int{1}, 4)}); err != nil {
		t.Fatal(err)
	}
	s, err := OpenFile(path)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	v, err := s.Tensor("big")
	if err != nil {
		t.Fatal(err)
	}
	before := residentFile(t)
	sum := 0
	for i := 0; i < len(v.Data); i += 512 {
		sum += int(v.Data[i])
	}
	read := residentFile(t)
	s.Release("big")
	after := residentFile(t)
	if sum != 0 || read-before < size*3/4 {
		t.Skipf("reading %d bytes made %d resident; nothing to see here", size, read-before)
	}
	if after-before > size/4 {
		t.Errorf("resident: %d before, %d after reading, %d after Release", before, read, after)
	}
	if v.Data[size/2] != 0 {
		t.Error("released data reads otherwise")
	}
}

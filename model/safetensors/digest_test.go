package safetensors

import (
	"path/filepath"
	"testing"

	"grebe/compute"
)

// A digest follows names, formats, shapes and values, not where they are stored.
func TestDigest(t *testing.T) {
	tensor := func(name string, shape []int, data ...byte) Named {
		return Named{Name: name, DType: compute.BF16, Shape: shape, Data: Bytes(data)}
	}
	a, b := tensor("a", []int{2}, 1, 2, 3, 4), tensor("b", []int{1, 2}, 5, 6, 7, 8)
	digest := func(tensors ...Named) [32]byte {
		t.Helper()
		path := filepath.Join(t.TempDir(), SingleFile)
		if err := Write(path, tensors); err != nil {
			t.Fatal(err)
		}
		s, err := OpenFile(path)
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		return s.Digest()
	}
	want := digest(a, b)
	if digest(b, a) != want {
		t.Error("the order in the file changes the digest")
	}
	dir := t.TempDir()
	if err := WriteSharded(dir, 4, []Named{a, b}); err != nil {
		t.Fatal(err)
	}
	s, err := Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if s.Digest() != want {
		t.Error("shards change the digest")
	}
	for name, other := range map[string][32]byte{
		"a value": digest(tensor("a", []int{2}, 1, 2, 3, 5), b),
		"a name":  digest(tensor("c", []int{2}, 1, 2, 3, 4), b),
		"a shape": digest(a, tensor("b", []int{2, 1}, 5, 6, 7, 8)),
		"fewer":   digest(a),
	} {
		if other == want {
			t.Errorf("%s does not change the digest", name)
		}
	}
}
